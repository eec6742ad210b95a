//! One timeout: a node.
//!
//! A node is one cache line that handles, lanes and the wheel share. This folder has all `unsafe`
//! code of the crate except the platform's hints. Its safe functions are sound whatever the engine
//! does with them: what belongs to one timer cannot be used with another one; a message is pushed
//! once; the right to a task is a value that is used once. Two things outside this folder are
//! trusted: the wheels give out each number that was inserted once, and no other; and [`Owner`]
//! returns what it was given: `handle` the handle of `timeout`, `pool` the pool of the timer.
//! Inside the folder, the fields of a node are trusted to be changed as the tables say.
//!
//! | file | content |
//! |---|---|
//! | [`word`] | the state word: how a timeout ends, and which deadline it has |
//! | [`timer_ref`] | batched references to a timer; independent of timers |
//! | [`task`] | the fields of a node, and its task of any type |
//! | [`arena`] | the memory of nodes, and what a timer has of it |
//! | [`free_list`], [`surplus`] | the worker's side of the arena: which free nodes are given out again, and which memory is returned |
//! | [`refs`] | reference counts: handles, the wheel's reference, free nodes |
//! | [`lane`](mod@lane) | from a caller's thread to the worker |
//! | [`transitions`] | who gets the task, the reference and the message when the word changes; what a message is |
//! | [`local`] | the callers' side: schedule, cancel, recycle |
//! | [`wheel`] | the worker's side: the wheel whose entries are nodes |
//!
//! Imports lead from the end of this list to its beginning.

mod arena;
mod free_list;
mod lane;
mod local;
mod refs;
mod surplus;
mod task;
#[cfg(test)]
mod tests;
mod timer_ref;
mod transitions;
mod wheel;
mod word;

pub(crate) use arena::{Pool, PoolId};
pub(crate) use lane::{Consumer, Producer, Waiting, lane};
pub(crate) use local::{IdleNodes, LocalNodes, NodesGuard};
#[cfg(feature = "async")]
pub(crate) use refs::TimerHandle;
pub(crate) use refs::{Handle, Owner, Released};
pub(crate) use task::{DetachedTask, NextRun, OnCancel, Task, TaskContext};
pub(crate) use timer_ref::TimerRef;
pub(crate) use transitions::{ClaimedTask, Message, Reset, RunOutcome, TaskClaim};
pub(crate) use wheel::{Arrival, Expiry, HeldRef, HeldRun, NodeWheel, WheelOf, new_timer};
pub(crate) use word::End;
