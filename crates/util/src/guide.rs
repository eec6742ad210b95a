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
