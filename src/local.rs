//! What a thread keeps of a timer, so that it need not share: a lane to the worker, vacant nodes, and references to the
//! timer's core that need not be counted again.
//!
//! A thread that ends gives all of it back. What it keeps of a timer that is stopped goes when it next touches that
//! timer or begins to use another one: until then it keeps the timer's memory, as a handle would.

use std::cell::RefCell;

use crate::core::Core;
use crate::counters::ThreadCounter;
use crate::lanes::Sender;
use crate::node::{Credit, Handle, Purse, RUN, Run, Vacant};
use crate::report;
use crate::sync::{Arc, IS_EXPLORED, Weak, local};

local!(static DESKS: RefCell<Desks> = RefCell::new(Desks { first: None, others: Vec::new() }));

struct Desks {
    /// The one that was used last.
    first: Option<Desk>,
    others: Vec<Desk>,
}

pub(crate) struct Desk {
    timer: Weak<Core>,
    /// Where that is, as long as `timer` keeps the place.
    core: *const Core,
    pub(crate) lane: Sender,
    tally: Arc<ThreadCounter>,
    /// What this thread has given back: still in its cache, so it is the first to be used again.
    vacant: Vec<Vacant>,
    run: Run,
    purse: Purse,
}

impl Desk {
    fn open(core: &Arc<Core>) -> Self {
        Self {
            timer: Arc::downgrade(core),
            core: Arc::as_ptr(core),
            lane: core.door.open(),
            tally: core.counters.resets.take(),
            vacant: Vec::with_capacity(2 * RUN + 1),
            run: Run::NONE,
            purse: Purse::default(),
        }
    }

    #[inline]
    fn is_of(&self, core: *const Core) -> bool {
        std::ptr::eq(self.core, core)
    }

    /// A vacant node of `core`'s, whose desk this is.
    #[inline]
    pub(crate) fn vacant(&mut self, core: &Core) -> Vacant {
        match self.vacant.pop().or_else(|| self.run.next()) {
            Some(vacant) => vacant,
            None => self.fetch_vacant(core),
        }
    }

    #[cold]
    fn fetch_vacant(&mut self, core: &Core) -> Vacant {
        self.run = core.arena.take_run();
        self.run.next().expect("a run that is worth taking has some")
    }

    /// A credit at `core`, whose desk this is.
    #[inline]
    pub(crate) fn credit(&mut self, core: &Arc<Core>) -> Credit {
        self.purse.take(core)
    }

    #[inline]
    fn keep(&mut self, credit: Credit, vacant: Option<Vacant>) {
        if let Some(vacant) = vacant {
            if self.vacant.len() > 2 * RUN {
                self.leave_some(credit.core());
            }
            self.vacant.push(vacant);
        }
        self.purse.put(credit);
    }

    /// The older ones: the others are still in the cache.
    #[cold]
    fn leave_some(&mut self, core: &Core) {
        core.arena.put_strays(self.vacant.drain(..RUN));
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let Some(core) = self.timer.upgrade() else { return };
        // (Each thread of a model ends some time, and it matters to nobody where vacant nodes lie.)
        if !IS_EXPLORED {
            let left = self.vacant.drain(..).chain(std::iter::from_fn(|| self.run.next()));
            core.arena.put_strays(left);
            core.counters.resets.give_back(Arc::clone(&self.tally));
        }
        self.purse.empty(&core);
        let_go(core);
    }
}

/// Lends out the thread's desk for this timer. `work` is not to run code of the user's.
#[inline]
pub(crate) fn with<R>(core: &Arc<Core>, work: impl FnOnce(&mut Desk) -> R) -> R {
    with_desk(core, || Arc::clone(core), work)
}

/// The same by way of a timeout's handle.
#[inline]
pub(crate) fn with_handle<R>(handle: &Handle, work: impl FnOnce(&mut Desk) -> R) -> R {
    with_desk(handle.core(), || handle.to_arc(), work)
}

#[inline]
fn with_desk<R>(core: &Core, arc: impl FnOnce() -> Arc<Core>, work: impl FnOnce(&mut Desk) -> R) -> R {
    let mut work = Some(work);
    let result = DESKS.try_with(|desks| {
        let mut desks = desks.try_borrow_mut().ok()?;
        let desk = desks.first.as_mut().filter(|desk| desk.is_of(core))?;
        work.take().map(|work| work(desk))
    });
    if let Ok(Some(result)) = result {
        return result;
    }
    let mut result = None;
    with_another(&arc(), &mut |desk| result = work.take().map(|work| work(desk)));
    result.expect("the desk was lent out")
}

/// Counts so many more `reset`s of this handle's. That is less than to be lent a desk, and leaves them in their order: who has an idle
/// timeout at one timer and requests at another is not to pay for it.
#[inline]
pub(crate) fn count_resets(handle: &Handle, more: i64) {
    let core = handle.core();
    let counted = DESKS.try_with(|desks| {
        let desks = desks.try_borrow().ok()?;
        let desk = desks.first.as_ref().filter(|desk| desk.is_of(core))?;
        desk.tally.count_resets(more);
        Some(())
    });
    if !matches!(counted, Ok(Some(()))) {
        count_resets_elsewhere(handle, more);
    }
}

#[cold]
fn count_resets_elsewhere(handle: &Handle, more: i64) {
    let core = handle.core();
    let counted = DESKS.try_with(|desks| {
        let desks = desks.try_borrow().ok()?;
        let desk = desks.others.iter().find(|desk| desk.is_of(core))?;
        desk.tally.count_resets(more);
        Some(())
    });
    if !matches!(counted, Ok(Some(()))) {
        with_another(&handle.to_arc(), &mut |desk| desk.tally.count_resets(more));
    }
}

/// [`with`], where the desk is not the one that was used last.
#[cold]
fn with_another(core: &Arc<Core>, work: &mut dyn FnMut(&mut Desk)) {
    let mut looked_at = Vec::new();
    let found = DESKS.try_with(|desks| {
        let mut desks = desks.try_borrow_mut().ok()?;
        let (desk, old) = desks.find(core, &mut looked_at);
        work(desk);
        Some(old)
    });
    match found {
        // With it may go what is the user's, and with those that were looked at.
        Ok(Some(old)) => drop(old),
        // A thread that is ending has no place of its own any more.
        _ => work(&mut Desk::open(core)),
    }
    looked_at.into_iter().for_each(let_go);
}

/// It may be the last one: then the user's clock and waker go with it.
fn let_go(core: Arc<Core>) {
    report::guard(|| drop(core), |panic| report::task_panicked("when it was dropped", "(a timer)", panic));
}

impl Desks {
    /// Puts the desk for this timer first. Those that are of no use any more come out.
    fn find(&mut self, core: &Arc<Core>, looked_at: &mut Vec<Arc<Core>>) -> (&mut Desk, Vec<Desk>) {
        self.others.extend(self.first.take());
        let mut desk = None;
        let mut old = Vec::new();
        for other in std::mem::take(&mut self.others) {
            let timer = other.timer.upgrade();
            if other.is_of(Arc::as_ptr(core)) {
                desk = Some(other);
            } else if timer.as_ref().is_none_or(|timer| timer.is_closed()) {
                old.push(other);
            } else {
                self.others.push(other);
            }
            looked_at.extend(timer);
        }
        let desk = self.first.insert(desk.unwrap_or_else(|| Desk::open(core)));
        (desk, old)
    }

    fn take(&mut self, core: *const Core) -> Option<Desk> {
        if self.first.as_ref().is_some_and(|desk| desk.is_of(core)) {
            return self.first.take();
        }
        let at = self.others.iter().position(|desk| desk.is_of(core))?;
        Some(self.others.swap_remove(at))
    }
}

/// Of a handle that was dropped: what it had.
#[inline]
pub(crate) fn give_back(credit: Credit, vacant: Option<Vacant>) {
    let mut left = Some((credit, vacant));
    let _ = DESKS.try_with(|desks| {
        let Ok(mut desks) = desks.try_borrow_mut() else { return };
        let Some(desk) = &mut desks.first else { return };
        let is_usual =
            |(credit, _): &mut (Credit, _)| desk.is_of(credit.core()) && !credit.core().is_closed();
        if let Some((credit, vacant)) = left.take_if(is_usual) {
            desk.keep(credit, vacant);
        }
    });
    if let Some((credit, vacant)) = left {
        give_back_elsewhere(credit, vacant);
    }
}

#[cold]
fn give_back_elsewhere(credit: Credit, vacant: Option<Vacant>) {
    if credit.core().is_closed() {
        return clear(credit.core());
    }
    let mut left = Some((credit, vacant));
    let _ = DESKS.try_with(|desks| {
        let mut desks = desks.try_borrow_mut().ok()?;
        let (credit, vacant) = left.take()?;
        match desks.others.iter_mut().find(|desk| desk.is_of(credit.core())) {
            Some(desk) => desk.keep(credit, vacant),
            None => left = Some((credit, vacant)),
        }
        Some(())
    });
    if let Some((credit, Some(vacant))) = left {
        credit.core().arena.put_stray(vacant);
    }
}

/// Lets go of what the thread keeps of a stopped timer, which the caller keeps.
#[cold]
pub(crate) fn clear(core: &Core) {
    let desk = DESKS.try_with(|desks| desks.try_borrow_mut().ok()?.take(core));
    drop(desk);
}
