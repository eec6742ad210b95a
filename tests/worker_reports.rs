//! What a worker thread reports of itself: to the subscriber of the whole process, for it has no other. So this is a test
//! binary of its own, with one test.

#![cfg(feature = "tracing")]

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Reports {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        assert_eq!(*event.metadata().level(), Level::DEBUG);
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_worker_says_that_it_started_and_that_it_ended() {
    let reports = Reports::default();
    tracing::subscriber::set_global_default(reports.clone()).unwrap();
    let take = || std::mem::take(&mut *reports.0.lock().unwrap());

    let timer = HashedWheelTimer::builder().thread_name("hw-seen").build().unwrap();
    assert!(take().is_empty(), "it is not started");
    timer.new_timeout(|_| (), Duration::from_secs(60)).unwrap();
    timer.stop();
    assert_eq!(
        take(),
        [
            " message=a timer's worker started thread=\"hw-seen\"",
            " message=a timer's worker ended thread=\"hw-seen\"",
        ]
    );
}
