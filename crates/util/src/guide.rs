//! The README and the guide of the repository, which show both crates. Their code is compiled and
//! run as doc tests.

#[doc = include_str!("../README.md")]
struct UtilReadme;

#[doc = include_str!("../../../README.md")]
struct Readme;

#[doc = include_str!("../../../docs/guide/getting-started.md")]
struct GettingStarted;

#[doc = include_str!("../../../docs/guide/wheel.md")]
struct Wheel;

#[doc = include_str!("../../../docs/guide/keys.md")]
struct Keys;

#[doc = include_str!("../../../docs/guide/async.md")]
struct Async;

#[cfg(feature = "http")]
#[doc = include_str!("../../../docs/guide/axum.md")]
struct Axum;

#[doc = include_str!("../../../docs/guide/executors.md")]
struct Executors;

#[doc = include_str!("../../../docs/guide/shutdown.md")]
struct Shutdown;

#[doc = include_str!("../../../docs/guide/testing.md")]
struct Testing;

#[doc = include_str!("../../../docs/guide/event-loops.md")]
struct EventLoops;

#[doc = include_str!("../../../docs/guide/observability.md")]
struct Observability;

#[doc = include_str!("../../../docs/guide/operation.md")]
struct Operation;

#[doc = include_str!("../../../docs/from-netty.md")]
struct FromNetty;

#[doc = include_str!("../../../docs/porting/redisson.md")]
struct Redisson;

#[doc = include_str!("../../../docs/porting/dubbo.md")]
struct Dubbo;

#[doc = include_str!("../../../docs/porting/cassandra.md")]
struct Cassandra;

#[doc = include_str!("../../../docs/porting/lettuce.md")]
struct Lettuce;

#[doc = include_str!("../../../docs/porting/kafka.md")]
struct Kafka;

#[doc = include_str!("../../../docs/porting/pulsar.md")]
struct Pulsar;

#[doc = include_str!("../../../docs/porting/async-http-client.md")]
struct AsyncHttpClient;

#[doc = include_str!("../../../docs/porting/jdk.md")]
struct Jdk;

#[doc = include_str!("../../../docs/porting/netty-channels.md")]
struct NettyChannels;
