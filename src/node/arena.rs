//! Where a timer's nodes live, and who may touch them.
//!
//! Nodes are made a run at a time: a page of them, a cache line each. They are used again and again, and their memory goes
//! back when the timer does. What is scheduled together lies together, also when nodes are used again: a thread takes
//! over what is vacant in a run, once that is half of it, and fills it in order ([`Spare`]). Nodes in the order in which
//! they happen to become vacant would make every later access a cache miss, and one of the page tables.
//!
//! Nobody frees a node while somebody else can reach it, for each reference to it is counted:
//!
//! * [`Handle`]s, the users', keep the timer's [`Core`] too, by a [`Credit`], and with it the arena. They may go anywhere.
//! * One [`Entry`], the timer's own, from the time the node is filled until the timer has done with it. It stays inside the
//!   `Core`: with the wheel or the worker, or it is *left to a message* about the node that is under way in a lane.
//! * None is a [`Vacant`] node: whoever has it has it alone.
//!
//! | from | to | how | order |
//! |---|---|---|---|
//! | vacant | 2 | [`Vacant::fill`]: a handle and the entry | a plain store: nobody else has it; published by the lane |
//! | n | n + 1 | [`Handle::clone`], or [`Entry::another_handle`] | `Relaxed`: who counts up has one |
//! | n > 1 | n − 1 | [`release`], by compare-exchange | `Release`, and `Acquire` for the last one |
//! | 1 | vacant | [`release`] | `Acquire`: what others did with it is over |
//! | 2, one of them merged | vacant | [`release`] | the same: the entry was given up ([`Handle::merge_entry`]), and not counted down |
//!
//! Who finds a 1 has the only reference, if it is theirs alone: an entry, or a handle that is being dropped. A handle that is
//! not may be lent to other threads, which clone it or end its timeout meanwhile: its count says nothing.

#![allow(unsafe_code)]

use std::alloc::{Layout, handle_alloc_error};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::{fmt, ptr};

use super::{Node, QUEUED, word};
use crate::core::Core;
use crate::local;
use crate::platform::{LARGE_PAGE, prefer_large_pages, prefetch};
#[cfg(not(hashed_wheel_loom))]
use crate::sync::Loads;
use crate::sync::unmodelled::{AtomicPtr, AtomicU64, AtomicUsize};
use crate::sync::{Arc, Ordering, Stock};
use crate::task::{Next, Task};

/// How many nodes a run has: as many as a word has bits.
pub(crate) const RUN: usize = if cfg!(hashed_wheel_loom) { 1 } else { 64 };

/// With so many vacant nodes a run is worth taking.
const WORTH: u32 = RUN.div_ceil(2) as u32;

/// The first chunk has so many nodes, and each further one twice as many as the one before. (Memory that is not used yet
/// costs addresses, nothing more.)
const FIRST: usize = if cfg!(hashed_wheel_loom) { 2 } else { 1_024 };

/// As many chunks as it takes to use up the numbers.
const CHUNKS: usize = (u32::BITS - FIRST.trailing_zeros()) as usize;

/// The most references to a node.
const MOST_REFS: u32 = u32::MAX / 2;

pub(crate) struct Arena {
    chunks: [AtomicPtr<Node>; CHUNKS],
    /// How many nodes were ever made, in whole runs.
    made: AtomicU64,
    /// Runs with enough vacant nodes.
    runs: Stock<Run>,
    /// Vacant nodes on their way to [`Spare`], by number: it is not to look at what lies far away by then.
    strays: Stock<Vec<u32>>,
    /// The same, one by one, of threads that have no desk.
    lone_strays: Stock<u32>,
    owns: PhantomData<Node>,
}

/// Vacant nodes of one run.
pub(crate) struct Run {
    first: NonNull<Node>,
    /// Which ones.
    vacant: u64,
}

// SAFETY: as of `Vacant`.
unsafe impl Send for Run {}

impl Run {
    pub(crate) const NONE: Self = Self { first: NonNull::dangling(), vacant: 0 };

    /// The next node, and the cache line of one that comes soon.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Vacant> {
        if self.vacant == 0 {
            return None;
        }
        let at = self.vacant.trailing_zeros() as usize;
        self.vacant &= self.vacant - 1;
        let place = |at| self.first.as_ptr().wrapping_add(at);
        prefetch(place(at + AHEAD));
        NonNull::new(place(at)).map(Vacant)
    }
}

/// So many nodes are fetched before they are filled.
const AHEAD: usize = 6;

/// Which nodes are vacant, of those that no thread has: the worker's.
#[derive(Default)]
pub(crate) struct Spare {
    /// A bit a node, a word a run.
    runs: Vec<u64>,
}

impl Spare {
    #[inline]
    pub(crate) fn put(&mut self, arena: &Arena, vacant: Vacant) {
        self.put_number(arena, vacant.number());
    }

    #[inline]
    fn put_number(&mut self, arena: &Arena, number: u32) {
        let run = number as usize / RUN;
        let at = number as usize - run * RUN;
        if run >= self.runs.len() {
            self.runs.resize((run + 1).next_power_of_two(), 0);
        }
        let bits = &mut self.runs[run];
        *bits |= 1 << at;
        if bits.count_ones() >= WORTH {
            arena.runs.push(Run { first: arena.at(number - at as u32), vacant: std::mem::take(bits) });
        }
    }

    /// Takes over what threads had left.
    pub(crate) fn collect(&mut self, arena: &Arena) {
        while let Some(strays) = arena.strays.pop() {
            strays.into_iter().for_each(|number| self.put_number(arena, number));
        }
        while let Some(number) = arena.lone_strays.pop() {
            self.put_number(arena, number);
        }
    }
}

/// Where the node with this number is: its chunk, and its place there.
fn place_of(number: u32) -> (usize, usize) {
    let number = number as usize + FIRST;
    let chunk = number.ilog2() - FIRST.ilog2();
    (chunk as usize, number - (FIRST << chunk))
}

fn layout(chunk: usize) -> Layout {
    let nodes = Layout::array::<Node>(FIRST << chunk);
    let aligned = nodes
        .and_then(|nodes| if nodes.size() < LARGE_PAGE { Ok(nodes) } else { nodes.align_to(LARGE_PAGE) });
    aligned.unwrap_or_else(|_| no_room())
}

/// Who asks for a node has been counted: were this to unwind, `stop` would wait for that timeout for ever.
#[cold]
fn no_room() -> ! {
    eprintln!(
        "hashed-wheel: a timer has room for 2^32 timeouts, ended ones that somebody has a handle of included"
    );
    std::process::abort()
}

impl Arena {
    pub(crate) fn new() -> Self {
        Self {
            chunks: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            made: AtomicU64::new(0),
            runs: Stock::new(),
            strays: Stock::new(),
            lone_strays: Stock::new(),
            owns: PhantomData,
        }
    }

    /// Some vacant nodes: used ones if there are enough together.
    pub(crate) fn take_run(&self) -> Run {
        self.runs.pop().unwrap_or_else(|| self.make())
    }

    /// For nodes that a thread has no use for.
    pub(crate) fn put_strays(&self, vacant: impl Iterator<Item = Vacant>) {
        let strays: Vec<_> = vacant.map(|vacant| vacant.number()).collect();
        if !strays.is_empty() {
            self.strays.push(strays);
        }
    }

    /// For one that a thread has no place for.
    pub(crate) fn put_stray(&self, vacant: Vacant) {
        self.lone_strays.push(vacant.number());
    }

    fn make(&self) -> Run {
        let number = self.made.fetch_add(RUN as u64, Ordering::Relaxed);
        let number = u32::try_from(number).ok().filter(|&number| number < u32::MAX - (FIRST + RUN) as u32);
        let number = number.unwrap_or_else(|| no_room());
        let (chunk, place) = place_of(number);
        let first = self.chunk(chunk).as_ptr().wrapping_add(place);
        for at in 0..RUN {
            // SAFETY: a run lies in one chunk, as both have a power of two as their length, and nobody else has this one.
            unsafe { first.add(at).write(Node::vacant(number + at as u32)) };
        }
        Run { first: NonNull::new(first).expect("a chunk is there"), vacant: u64::MAX >> (64 - RUN) }
    }

    fn chunk(&self, chunk: usize) -> NonNull<Node> {
        if let Some(there) = NonNull::new(self.chunks[chunk].load(Ordering::Acquire)) {
            return there;
        }
        // SAFETY: a chunk is not of length zero.
        let new = unsafe { std::alloc::alloc(layout(chunk)) };
        let Some(new) = NonNull::new(new) else { handle_alloc_error(layout(chunk)) };
        prefer_large_pages(new, layout(chunk));
        let new = new.cast::<Node>();
        let null = ptr::null_mut();
        match self.chunks[chunk].compare_exchange(null, new.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(there) => {
                // SAFETY: allocated above with this layout, and seen by nobody.
                unsafe { std::alloc::dealloc(new.as_ptr().cast(), layout(chunk)) };
                NonNull::new(there).expect("it is not null")
            }
        }
    }

    /// The node with this number.
    #[inline]
    fn at(&self, number: u32) -> NonNull<Node> {
        let (chunk, place) = place_of(number);
        let node = self.chunks[chunk].load(Ordering::Acquire).wrapping_add(place);
        NonNull::new(node).expect("numbers are those of nodes")
    }

    /// The timer's entry of the node with this number, which the caller takes over from where it was kept by number.
    #[inline]
    pub(crate) fn entry(&self, number: u32) -> Entry {
        Entry(self.at(number))
    }

    /// To look at a node whose entry is kept by number.
    #[inline]
    pub(super) fn node(&self, number: u32) -> &Node {
        // SAFETY: a number that is kept somewhere is that of a node that was made. Nobody has a `&mut Node`.
        unsafe { self.at(number).as_ref() }
    }

    /// Fetches a node's cache line, for it will be needed soon. Does nothing where there is no such instruction.
    #[inline]
    pub(super) fn prefetch(&self, number: u32) {
        prefetch(self.at(number).as_ptr());
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        #[cfg(hashed_wheel_loom)]
        for number in 0..*self.made.get_mut() as u32 {
            // SAFETY: it was made, and nobody refers to it: handles keep the `Core`, and all else has gone with it.
            unsafe { ptr::drop_in_place(self.at(number).as_ptr()) };
        }
        // (Outside models a node has nothing to drop.)
        for (number, chunk) in self.chunks.iter_mut().enumerate() {
            if !chunk.get_mut().is_null() {
                // SAFETY: allocated with this layout.
                unsafe { std::alloc::dealloc((*chunk.get_mut()).cast(), layout(number)) };
            }
        }
    }
}

/// Gives up a reference that was the caller's.
#[inline]
fn release(node: NonNull<Node>) -> Option<Vacant> {
    // SAFETY: until it is given up, the reference keeps the node.
    let Node { refs, merged, .. } = unsafe { node.as_ref() };
    let mut count = refs.load_count(Ordering::Acquire);
    loop {
        // Looked at while the reference is still counted: afterwards another's timeout may be in the node, and be merged. At 2
        // nobody else has a handle whose message could still be taken back, so this does not change any more.
        if count == 1 || count == 2 && merged.load_of_another(Ordering::Relaxed) == 1 {
            // Who has the only one need not count down.
            return Some(Vacant(node));
        }
        match refs.compare_exchange_weak(count, count - 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return None,
            Err(now) => count = now,
        }
    }
}

/// A node that nobody else can reach, with nothing in it.
pub(crate) struct Vacant(NonNull<Node>);

// SAFETY: a node is atomics and a task, which is `Send`.
unsafe impl Send for Vacant {}

impl Vacant {
    fn number(&self) -> u32 {
        // SAFETY: nobody else can reach it, and its arena is there, or nobody would ask.
        unsafe { self.0.as_ref() }.number
    }

    /// Makes it a timeout that is about to be pushed to a lane, as the message with this ticket. `credit` is
    /// at the core whose arena it is from.
    #[inline]
    pub(crate) fn fill<T: Task>(
        self,
        task: T,
        deadline: u64,
        ticket: u64,
        credit: Credit,
    ) -> (Handle, Entry) {
        // SAFETY: nobody else can reach it, and its arena is there, as the credit says.
        let node = unsafe { self.0.as_ref() };
        node.word.store(word(deadline, QUEUED), Ordering::Relaxed);
        node.refs.store(2, Ordering::Relaxed);
        node.merged.store(0, Ordering::Relaxed);
        node.set_ticket(ticket);
        // SAFETY: as above; what was in a vacant node has been taken out.
        unsafe { node.task.put(task) };
        (Handle { node: self.0, credit: ManuallyDrop::new(credit) }, Entry(self.0))
    }
}

/// The timer's own reference to a node. It does not leave the `Core` whose arena the node is in.
///
/// Dropping it is leaving it to the message about the node that is under way.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "or the node is never used again"]
pub(crate) struct Entry(NonNull<Node>);

// SAFETY: as of `Vacant`.
unsafe impl Send for Entry {}

impl Deref for Entry {
    type Target = Node;

    #[inline]
    fn deref(&self) -> &Node {
        // SAFETY: a reference is counted for it, and the arena is there.
        unsafe { self.0.as_ref() }
    }
}

impl Entry {
    /// Whether no handle is left: then nobody but the caller changes the node.
    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        self.refs.load_count(Ordering::Acquire) == 1
    }

    /// The timer has done with it.
    #[inline]
    pub(crate) fn release(self) -> Option<Vacant> {
        release(self.0)
    }

    /// Makes a handle of it. `credit` is at the core whose arena it is from.
    #[inline]
    pub(crate) fn into_handle(self, credit: Credit) -> Handle {
        Handle { node: self.0, credit: ManuallyDrop::new(credit) }
    }

    /// A handle beside it.
    pub(crate) fn another_handle(&self, credit: Credit) -> Handle {
        self.refs.fetch_add(1, Ordering::Relaxed);
        Handle { node: self.0, credit: ManuallyDrop::new(credit) }
    }
}

/// How many handles keep a [`Core`], in lots: a thread takes so many credits at a time, each handle has one, and whoever
/// drops it has it then. All together own one reference to the core.
///
/// | from | to | who |
/// |---|---|---|
/// | 0 | n | takes the reference, by one of its own |
/// | n | 0 | drops it |
pub(crate) struct Credits(AtomicUsize);

/// The most credits: see [`MOST_REFS`].
const MOST_CREDITS: usize = usize::MAX / 2;

/// How many credits change hands at a time.
const LOT: usize = 1_024;

/// A thread's credits at one core.
#[derive(Default)]
pub(crate) struct Purse {
    credits: usize,
}

impl Credits {
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    fn take(core: &Arc<Core>, credits: usize) {
        if core.credits.add(credits) == 0 {
            // Now or soon somebody may give up the reference of those before: it is another one.
            std::mem::forget(Arc::clone(core));
        }
    }

    /// Says how many there were.
    fn add(&self, credits: usize) -> usize {
        let before = self.0.fetch_add(credits, Ordering::Relaxed);
        if before >= MOST_CREDITS {
            // As with the references of one node.
            std::process::abort();
        }
        before
    }

    /// The caller had these.
    fn give_back(core: NonNull<Core>, credits: usize) {
        if credits > 0 {
            // SAFETY: until they are given back, the credits keep the core; and who gives back the last ones has the
            // reference that was forgotten.
            unsafe {
                if core.as_ref().credits.0.fetch_sub(credits, Ordering::AcqRel) == credits {
                    Arc::decrement_strong_count(core.as_ptr());
                }
            }
        }
    }
}

fn as_ptr(core: &Arc<Core>) -> NonNull<Core> {
    NonNull::new(Arc::as_ptr(core).cast_mut()).expect("an Arc is not null")
}

impl Purse {
    /// One credit at `core`, whose purse this is.
    #[inline]
    pub(crate) fn take(&mut self, core: &Arc<Core>) -> Credit {
        if self.credits == 0 {
            Credits::take(core, LOT);
            self.credits = LOT;
        }
        self.credits -= 1;
        Credit(as_ptr(core))
    }

    /// Of the core whose purse this is.
    #[inline]
    pub(crate) fn put(&mut self, credit: Credit) {
        self.credits += 1;
        if self.credits > 2 * LOT {
            self.credits -= LOT;
            Credits::give_back(credit.0, LOT);
        }
        std::mem::forget(credit);
    }

    /// Gives all back: `core` is the one whose purse this is.
    pub(crate) fn empty(&mut self, core: &Arc<Core>) {
        Credits::give_back(as_ptr(core), std::mem::take(&mut self.credits));
    }
}

/// The right to a core while it exists.
pub(crate) struct Credit(NonNull<Core>);

// SAFETY: `Core` is `Send` and `Sync`.
unsafe impl Send for Credit {}
// SAFETY: as above.
unsafe impl Sync for Credit {}

impl Credit {
    /// One outside any purse.
    pub(crate) fn at(core: &Arc<Core>) -> Self {
        Credits::take(core, 1);
        Self(as_ptr(core))
    }

    #[inline]
    pub(crate) fn core(&self) -> &Core {
        // SAFETY: the credit keeps it.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn to_arc(&self) -> Arc<Core> {
        // SAFETY: it was made of an `Arc`, and the credit keeps it.
        unsafe {
            Arc::increment_strong_count(self.0.as_ptr());
            Arc::from_raw(self.0.as_ptr())
        }
    }
}

impl Clone for Credit {
    fn clone(&self) -> Self {
        // There is one, so all have their reference.
        self.core().credits.add(1);
        Self(self.0)
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        Credits::give_back(self.0, 1);
    }
}

/// A user's reference to a node, and to the timer.
pub(crate) struct Handle {
    node: NonNull<Node>,
    credit: ManuallyDrop<Credit>,
}

// SAFETY: as of `Vacant`.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    #[inline]
    pub(crate) fn core(&self) -> &Core {
        self.credit.core()
    }

    pub(crate) fn to_arc(&self) -> Arc<Core> {
        self.credit.to_arc()
    }

    pub(crate) fn as_ptr(&self) -> *const Node {
        self.node.as_ptr()
    }

    /// As dropping it, where the caller sees to what it had.
    #[inline]
    pub(crate) fn into_parts(self) -> (Credit, Option<Vacant>) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: nobody looks at it afterwards.
        (unsafe { ManuallyDrop::take(&mut this.credit) }, release(this.node))
    }

    #[inline]
    fn node(&self) -> &Node {
        // SAFETY: a reference is counted for it, and the credit keeps the core, which has the arena.
        unsafe { self.node.as_ref() }
    }

    /// Gives up the entry of a node whose message the caller has taken back before the worker saw it. The count stays, which
    /// saves a locked instruction: who drops the last handle knows.
    #[inline]
    pub(crate) fn merge_entry(&self) {
        self.merged.store(1, Ordering::Relaxed);
    }
}

impl Deref for Handle {
    type Target = Node;

    #[inline]
    fn deref(&self) -> &Node {
        self.node()
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        if self.refs.fetch_add(1, Ordering::Relaxed) > MOST_REFS {
            // Leaked ones, for who could keep them? Before it begins anew at zero, as an `Arc` does.
            std::process::abort();
        }
        Self { node: self.node, credit: self.credit.clone() }
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        let vacant = release(self.node);
        // SAFETY: nobody looks at it afterwards. It goes last: it keeps the core, which has the node.
        local::give_back(unsafe { ManuallyDrop::take(&mut self.credit) }, vacant);
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node().fmt(f)
    }
}

/// Whether what wins the end of a node's timeout has its task: the right to it, once.
#[must_use = "or the task is never dropped"]
pub(crate) struct Claim(NonNull<Node>);

// SAFETY: the task is `Send`.
unsafe impl Send for Claim {}
// SAFETY: nothing can be done with a shared one.
unsafe impl Sync for Claim {}

impl Claim {
    /// Of a node whose end the caller has just decided.
    #[inline]
    pub(super) fn of(node: &Node) -> Self {
        Self(NonNull::from(node))
    }

    /// The task's node, which `timeout` keeps.
    #[inline]
    fn node(&self, timeout: &crate::Timeout) -> &Node {
        assert!(ptr::eq(timeout.handle.as_ptr(), self.0.as_ptr()), "a claim is to one task");
        // SAFETY: just asked.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(crate) fn run(self, timeout: &crate::Timeout) {
        // SAFETY: who ended the timeout has the task, once: a claim is made by that one and used up here.
        unsafe { self.node(timeout).task.run(timeout) }
    }

    /// Runs a task that repeats, or leaves one run out. Says when the next one is due, unless that was the last. `keeper`
    /// keeps the node, and is that of the claim.
    pub(crate) fn repeat(&mut self, keeper: &Node, core: &Core, runs: bool) -> Option<Next> {
        assert!(ptr::eq(keeper, self.0.as_ptr()), "a claim is to one task");
        // SAFETY: as above, but that the claim goes on, and with it the task.
        unsafe { keeper.task.repeat(core, runs) }
    }

    /// Whether nothing happens when the task is dropped.
    #[inline]
    pub(crate) fn is_plain(&self, timeout: &crate::Timeout) -> bool {
        // SAFETY: there is a task, so nobody puts one in.
        unsafe { self.node(timeout).task.is_plain() }
    }

    /// Whether the task is not for a task executor.
    pub(crate) fn runs_on_worker(&self, timeout: &crate::Timeout) -> bool {
        // SAFETY: as above.
        unsafe { self.node(timeout).task.runs_on_worker() }
    }

    #[inline]
    pub(crate) fn cancelled(self, timeout: &crate::Timeout) {
        // SAFETY: as above.
        unsafe { self.node(timeout).task.cancelled(timeout) }
    }

    /// Drops the task. `keeper` keeps the node, and is that of the claim.
    pub(crate) fn discard(self, keeper: &Node) {
        assert!(ptr::eq(keeper, self.0.as_ptr()), "a claim is to one task");
        // SAFETY: as above.
        unsafe { keeper.task.discard() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_place() {
        let mut expected = (0, 0);
        for number in 0..10_000 {
            assert_eq!(place_of(number), expected);
            expected.1 += 1;
            if expected.1 == FIRST << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(place_of(u32::MAX - FIRST as u32).0, CHUNKS - 1);
    }
}
