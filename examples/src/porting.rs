//! The pages for porters. Their code is compiled and run as doc tests.

#[doc = include_str!("../../docs/from-netty.md")]
struct FromNetty;

#[doc = include_str!("../../docs/porting/redisson.md")]
struct Redisson;

#[doc = include_str!("../../docs/porting/dubbo.md")]
struct Dubbo;

#[doc = include_str!("../../docs/porting/cassandra.md")]
struct Cassandra;

#[doc = include_str!("../../docs/porting/lettuce.md")]
struct Lettuce;

#[doc = include_str!("../../docs/porting/kafka.md")]
struct Kafka;

#[doc = include_str!("../../docs/porting/pulsar.md")]
struct Pulsar;

#[doc = include_str!("../../docs/porting/async-http-client.md")]
struct AsyncHttpClient;

#[doc = include_str!("../../docs/porting/jdk.md")]
struct Jdk;

#[doc = include_str!("../../docs/porting/netty-channels.md")]
struct NettyChannels;
