//! One module per example, and those of what the examples share. They are one program, because
//! cargo runs programs one after the other, and most of these tests wait.

mod bounded_pool;
mod deadlines;
mod event_loop;
mod http_server;
mod idle_connections;
mod many_pending;
mod metrics;
mod proxy;
mod request_cost;
mod single_threaded;
mod wheel_top;
