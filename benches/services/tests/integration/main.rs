//! One module per service. They are one program, because cargo runs programs one after the other,
//! and most of these tests wait.

mod many_pending;
mod request_cost;
