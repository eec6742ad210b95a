//! `IdleIo` on the manual clock, over pipes of tokio; and once over a socket.
#![cfg(feature = "tokio")]

use crate::common;

use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use common::{Driven, TICK, ms};
use hashed_wheel::{HashedWheelTimer, TimeoutError};
use hashed_wheel_util::{IdleIo, IdleTimes, IoTimeout};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf, duplex, split};
use tokio::net::TcpListener;
use tokio::runtime;

const IDLE: Duration = Duration::from_millis(100);

/// A task that counts its wake-ups.
#[derive(Default)]
struct Task(AtomicUsize);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Task {
    fn wakes(&self) -> usize {
        self.0.load(SeqCst)
    }

    fn read(self: &Arc<Self>, io: &mut (impl AsyncRead + Unpin)) -> Poll<io::Result<Vec<u8>>> {
        self.poll(io, |io, context| {
            let mut bytes = [0; 8];
            let mut buffer = ReadBuf::new(&mut bytes);
            io.poll_read(context, &mut buffer)
                .map_ok(|()| buffer.filled().to_vec())
        })
    }

    /// Polls, and once more if the poll has woken this task: see
    /// `data_that_came_in_time_is_read_although_the_runtime_was_busy`.
    fn poll<T: Unpin, R>(
        self: &Arc<Self>,
        io: &mut T,
        poll: impl Fn(Pin<&mut T>, &mut Context<'_>) -> Poll<R>,
    ) -> Poll<R> {
        let waker = Waker::from(Arc::clone(self));
        let (mut context, before) = (Context::from_waker(&waker), self.wakes());
        let result = poll(Pin::new(io), &mut context);
        if result.is_ready() || self.wakes() == before {
            return result;
        }
        self.0.store(before, SeqCst);
        poll(Pin::new(io), &mut context)
    }

    /// Polls only once.
    fn read_once(self: &Arc<Self>, io: &mut (impl AsyncRead + Unpin)) -> Poll<io::Result<()>> {
        let waker = Waker::from(Arc::clone(self));
        let mut bytes = [0; 8];
        Pin::new(io).poll_read(
            &mut Context::from_waker(&waker),
            &mut ReadBuf::new(&mut bytes),
        )
    }

    fn write(
        self: &Arc<Self>,
        io: &mut (impl AsyncWrite + Unpin),
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(io, |io, context| io.poll_write(context, bytes))
    }
}

/// A connection with its other end, which accepts 4 bytes.
fn connection() -> (Driven, IdleIo<DuplexStream>, DuplexStream, Arc<Task>) {
    let t = Driven::new();
    let (near, far) = duplex(4);
    let io = IdleIo::new(near, &t.timer, IDLE);
    (t, io, far, Arc::default())
}

#[track_caller]
fn assert_timed_out<T: std::fmt::Debug>(result: Poll<io::Result<T>>) {
    let Poll::Ready(Err(error)) = result else {
        panic!("{result:?}")
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let inner = error.get_ref().unwrap().downcast_ref();
    assert!(matches!(inner, Some(TimeoutError::Elapsed)));
}

#[track_caller]
fn assert_ready<T: std::fmt::Debug + PartialEq>(result: Poll<io::Result<T>>, expected: T) {
    assert_eq!(result.map(Result::unwrap), Poll::Ready(expected));
}

#[test]
fn read_without_traffic_times_out_and_stays_timed_out() {
    let (mut t, mut io, mut far, task) = connection();
    assert!(task.read(&mut io).is_pending());
    t.pass(IDLE - TICK);
    assert_eq!(task.wakes(), 0);
    assert!(task.read(&mut io).is_pending());
    t.pass(TICK);
    assert_eq!(task.wakes(), 1);
    assert_timed_out(task.read(&mut io));
    assert_timed_out(task.read(&mut io));
    // A write that need not wait succeeds, and is traffic.
    assert_ready(task.write(&mut far, b"late"), 4);
    assert_ready(task.read(&mut io), b"late".to_vec());
    assert!(task.read(&mut io).is_pending());
    drop(io);
    assert_eq!(t.timer.pending_timeouts(), 0);
}

#[test]
fn traffic_in_either_direction_starts_the_time_anew() {
    let (mut t, mut io, mut far, task) = connection();
    let peer = Arc::<Task>::default();
    for _ in 0..5 {
        assert!(task.read(&mut io).is_pending());
        t.pass(IDLE - TICK);
        assert_ready(peer.write(&mut far, b"a"), 1);
        assert_ready(task.read(&mut io), b"a".to_vec());
        assert!(task.read(&mut io).is_pending());
        t.pass(IDLE - TICK);
        assert_ready(task.write(&mut io, b"b"), 1);
        assert_ready(peer.read(&mut far), b"b".to_vec());
    }
    assert_eq!(
        (t.timer.stats().scheduled, t.timer.stats().expired),
        (1, 0),
        "re-armed in place"
    );
    assert!(task.read(&mut io).is_pending());
    t.pass(IDLE);
    assert_timed_out(task.read(&mut io));
}

/// A flush moves no bytes.
#[test]
fn only_bytes_are_traffic() {
    let (mut t, mut io, _far, task) = connection();
    assert!(task.read(&mut io).is_pending());
    t.pass(IDLE - TICK);
    assert_ready(task.poll(&mut io, AsyncWrite::poll_flush), ());
    assert!(task.read(&mut io).is_pending());
    t.pass(TICK);
    assert_timed_out(task.read(&mut io));
}

#[test]
fn write_to_a_peer_that_does_not_read_times_out() {
    let (mut t, mut io, _far, task) = connection();
    assert_ready(task.write(&mut io, b"12345"), 4);
    assert!(task.write(&mut io, b"5").is_pending());
    t.pass(IDLE);
    assert_eq!(task.wakes(), 1);
    assert_timed_out(task.write(&mut io, b"5"));
}

/// A connection whose operations all wait, except that it can write several slices.
struct Stuck;

impl AsyncRead for Stuck {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Stuck {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

#[test]
fn flush_and_shutdown_are_limited_and_vectored_writes_are_passed_on() {
    let mut t = Driven::new();
    let mut io = IdleIo::new(Stuck, &t.timer, IDLE);
    let task = Arc::<Task>::default();
    assert!(task.poll(&mut io, AsyncWrite::poll_flush).is_pending());
    t.pass(IDLE);
    assert_timed_out(task.poll(&mut io, AsyncWrite::poll_flush));
    assert_timed_out(task.poll(&mut io, AsyncWrite::poll_shutdown));
    assert!(task.read(&mut io).is_pending(), "it begins now");
    t.pass(IDLE);
    assert_timed_out(task.read(&mut io));
    assert!(io.is_write_vectored());
    let slices = [IoSlice::new(b"ab"), IoSlice::new(b"c")];
    assert_ready(
        task.poll(&mut io, |io, context| {
            io.poll_write_vectored(context, &slices)
        }),
        3,
    );
    assert!(
        task.poll(&mut io, AsyncWrite::poll_shutdown).is_pending(),
        "that was traffic"
    );
}

/// Both halves wait in tasks of their own: each is woken, and each fails.
#[test]
fn both_halves_of_a_split_connection_time_out() {
    let (mut t, io, mut far, reader) = connection();
    let (writer, peer) = (Arc::<Task>::default(), Arc::<Task>::default());
    let (mut read, mut write) = split(io);
    assert!(reader.read(&mut read).is_pending());
    assert_ready(writer.write(&mut write, b"1234"), 4);
    assert!(writer.write(&mut write, b"5").is_pending());
    t.pass(IDLE - TICK);
    // The peer writes: traffic of the reader, which moves the deadline of the writer too.
    assert_ready(peer.write(&mut far, b"a"), 1);
    assert_ready(reader.read(&mut read), b"a".to_vec());
    assert!(reader.read(&mut read).is_pending());
    let [of_reader, of_writer] = [reader.wakes(), writer.wakes()];
    t.pass(IDLE - TICK);
    assert!(writer.write(&mut write, b"5").is_pending());
    assert_eq!([reader.wakes(), writer.wakes()], [of_reader, of_writer]);
    t.pass(TICK);
    assert_eq!(
        [reader.wakes(), writer.wakes()],
        [of_reader + 1, of_writer + 1]
    );
    assert_timed_out(writer.write(&mut write, b"5"));
    assert_timed_out(reader.read(&mut read));
}

/// As `tokio::io::copy` does. The last poll is the next one of the task.
#[test]
fn a_task_may_poll_twice_before_its_last_poll() {
    let mut t = Driven::new();
    let (near, _far) = duplex(8);
    let mut io = IdleIo::new(near, &t.timer, IDLE);
    let mut polls = 0;
    let poll = poll_fn(|context| {
        let mut read = || {
            let mut bytes = [0; 8];
            Pin::new(&mut io).poll_read(context, &mut ReadBuf::new(&mut bytes))
        };
        polls += 1;
        if polls == 2 {
            assert!(read().is_pending());
        }
        match read() {
            Poll::Pending if polls == 1 => {
                t.pass(IDLE + TICK);
                Poll::Pending
            }
            end => end,
        }
    });
    let runtime = runtime::Builder::new_current_thread().build().unwrap();
    let error = runtime.block_on(poll).unwrap_err();
    assert_eq!((error.kind(), polls), (ErrorKind::TimedOut, 3));
}

/// The timer's thread wakes the reader before the runtime, which was busy, has looked at the
/// socket.
#[test]
fn data_that_came_in_time_is_read_although_the_runtime_was_busy() {
    for _ in 0..3 {
        let timer = HashedWheelTimer::new(ms(1), 64);
        let runtime = runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        let read = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let peer = thread::spawn(move || {
                let mut peer = std::net::TcpStream::connect(address).unwrap();
                thread::sleep(ms(20));
                std::io::Write::write_all(&mut peer, b"data").unwrap();
                peer
            });
            let (socket, _) = listener.accept().await.unwrap();
            let reader = tokio::spawn(async move {
                let mut bytes = [0; 4];
                IdleIo::new(socket, &timer, ms(50))
                    .read_exact(&mut bytes)
                    .await
                    .map(|_| bytes)
            });
            // The reader waits. Then nothing runs until its time is over.
            tokio::task::yield_now().await;
            thread::sleep(ms(100));
            let _peer = peer.join().unwrap();
            reader.await.unwrap()
        });
        assert_eq!(read.unwrap(), *b"data");
    }
}

#[test]
fn set_times_takes_effect_immediately() {
    let (mut t, mut io, _far, task) = connection();
    assert!(task.read(&mut io).is_pending());
    io.set_times(IDLE * 2);
    assert_eq!(io.times(), IdleTimes::new().all(IDLE * 2));
    t.pass(IDLE);
    assert!(task.read(&mut io).is_pending());
    io.set_times(IDLE / 2);
    t.pass(IDLE / 2);
    assert_timed_out(task.read(&mut io));
    io.set_times(Duration::MAX);
    assert!(task.read(&mut io).is_pending());
    t.pass(IDLE * 1_000);
    assert!(task.read(&mut io).is_pending());
    io.set_times(Duration::ZERO);
    assert_timed_out(task.read(&mut io));
}

/// Reads 1 s apart, writes 3 s apart.
const OF_READER: Duration = Duration::from_secs(1);
const OF_WRITER: Duration = Duration::from_secs(3);

#[test]
fn reader_and_writer_have_times_of_their_own() {
    let (mut t, mut io, mut far, reader) = connection();
    let (writer, peer) = (Arc::<Task>::default(), Arc::<Task>::default());
    io.set_times(IdleTimes::new().reader(OF_READER).writer(OF_WRITER));
    assert_ready(writer.write(&mut io, b"1234"), 4);
    for _ in 0..2 {
        assert!(reader.read(&mut io).is_pending() && writer.write(&mut io, b"5").is_pending());
        t.pass(OF_READER - TICK);
        // A read is no traffic of the writer.
        assert_ready(peer.write(&mut far, b"a"), 1);
        assert_ready(reader.read(&mut io), b"a".to_vec());
    }
    assert!(reader.read(&mut io).is_pending() && writer.write(&mut io, b"5").is_pending());
    t.pass(OF_READER);
    assert_timed_out(reader.read(&mut io));
    assert!(writer.write(&mut io, b"5").is_pending());
    t.pass(TICK);
    assert!(
        writer.write(&mut io, b"5").is_pending(),
        "3 s after the write, but for one tick"
    );
    t.pass(TICK);
    assert_timed_out(writer.write(&mut io, b"5"));
    // Traffic of the writer, and none of the reader.
    assert_ready(peer.read(&mut far), b"1234".to_vec());
    assert_ready(writer.write(&mut io, b"5678"), 4);
    assert!(writer.write(&mut io, b"9").is_pending());
    assert_timed_out(reader.read(&mut io));
    assert_eq!(
        t.timer.stats().scheduled,
        3,
        "re-armed in place, but for one that had fired"
    );
}

/// The earlier of the two ends an operation.
#[test]
fn time_for_all_and_time_of_a_direction_together() {
    let (mut t, mut io, mut far, task) = connection();
    let peer = Arc::<Task>::default();
    io.set_times(IdleTimes::new().reader(IDLE * 3).all(IDLE));
    assert!(task.read(&mut io).is_pending());
    for _ in 0..2 {
        t.pass(IDLE - TICK);
        assert_ready(task.write(&mut io, b"b"), 1);
        assert_ready(peer.read(&mut far), b"b".to_vec());
        assert!(task.read(&mut io).is_pending(), "the write was traffic");
    }
    t.pass(IDLE);
    assert_timed_out(task.read(&mut io));
    assert_timed_out(task.read(&mut io));
    // The reader's own time is over after 3 * IDLE, although there are writes.
    io.set_times(IdleTimes::new().reader(IDLE * 3).all(IDLE));
    for _ in 0..5 {
        assert!(task.read(&mut io).is_pending());
        t.pass(IDLE / 2);
        assert_ready(task.write(&mut io, b"b"), 1);
        assert_ready(peer.read(&mut far), b"b".to_vec());
    }
    assert!(task.read(&mut io).is_pending());
    t.pass(IDLE / 2);
    assert_timed_out(task.read(&mut io));
}

/// Each write is traffic, and the reader has no more time because of it.
#[test]
fn busy_writer_does_not_keep_an_idle_reader_alive() {
    let (mut t, mut io, mut far, reader) = connection();
    let (writer, peer) = (Arc::<Task>::default(), Arc::<Task>::default());
    io.set_times(IdleTimes::new().reader(IDLE).all(IDLE * 100));
    let read = |io: &mut _| reader.read_once(io);
    assert!(read(&mut io).is_pending());
    t.pass(IDLE);
    let mut polls = 0;
    let end = loop {
        polls += 1;
        if let Poll::Ready(end) = read(&mut io) {
            break end;
        }
        assert!(
            polls < 3,
            "it gets one more poll, and not one after each write"
        );
        t.pass(TICK);
        assert_ready(writer.write(&mut io, b"b"), 1);
        assert_ready(peer.read(&mut far), b"b".to_vec());
    };
    assert_timed_out(Poll::Ready(end));
}

/// The runtime gets the time to look at its connections at the end of each wait, also of one that
/// traffic in the other direction has made longer at the last moment.
#[test]
fn operation_gets_one_more_poll_at_the_end_of_each_wait() {
    let (mut t, mut io, _far, task) = connection();
    for bytes in [b"a", b"b"] {
        assert!(task.read_once(&mut io).is_pending());
        t.pass(IDLE);
        assert!(
            task.read_once(&mut io).is_pending(),
            "it has woken the task"
        );
        assert_ready(task.write(&mut io, bytes), 1);
        t.pass(IDLE);
        assert!(
            task.read_once(&mut io).is_pending(),
            "it has woken the task again"
        );
        assert_timed_out(task.read_once(&mut io));
        io.set_times(IDLE);
    }
}

#[test]
fn without_a_time_no_operation_is_limited() {
    let (mut t, mut io, _far, task) = connection();
    io.set_times(IdleTimes::new());
    assert!(task.read(&mut io).is_pending());
    assert_eq!((t.pass(IDLE * 1_000), t.timer.stats().scheduled), (0, 0));
    assert!(task.read(&mut io).is_pending());
    io.set_times(IdleTimes::new().writer(IDLE));
    assert_ready(task.write(&mut io, b"1234"), 4);
    assert!(task.read(&mut io).is_pending() && task.write(&mut io, b"5").is_pending());
    t.pass(IDLE);
    assert!(task.read(&mut io).is_pending());
    assert_timed_out(task.write(&mut io, b"5"));
}

#[test]
fn operation_that_waits_without_a_limit_gets_the_one_that_is_set() {
    let (mut t, mut io, _far, task) = connection();
    io.set_times(IdleTimes::new());
    assert!(task.read(&mut io).is_pending());
    io.set_times(IDLE);
    assert_eq!(task.wakes(), 1, "to wait with the limit");
    assert!(task.read(&mut io).is_pending());
    t.pass(IDLE);
    assert_eq!(task.wakes(), 2);
    assert_timed_out(task.read(&mut io));
}

#[test]
fn stopped_timer_is_an_error_of_what_has_to_wait() {
    let (t, mut io, mut far, task) = connection();
    assert!(task.read(&mut io).is_pending());
    t.timer.stop();
    let Poll::Ready(Err(error)) = task.read(&mut io) else {
        panic!("no error")
    };
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    assert_ready(task.write(&mut far, b"a"), 1);
    assert_ready(task.read(&mut io), b"a".to_vec());
    assert!(task.read(&mut io).is_ready());
    assert_eq!(
        io.get_ref().is_write_vectored(),
        io.into_inner().is_write_vectored()
    );
}

/// As a future does not.
#[test]
fn connection_does_not_keep_the_timer_running() {
    let (t, mut io, _far, task) = connection();
    let Driven { timer, driver, .. } = t;
    assert!(task.read(&mut io).is_pending());
    assert_ready(task.write(&mut io, b"a"), 1);
    drop(timer);
    assert!(driver.is_stopped());
    let Poll::Ready(Err(error)) = task.read(&mut io) else {
        panic!("no error")
    };
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    io.set_times(IDLE * 2);
}

#[test]
fn write_of_no_bytes_is_not_traffic() {
    let (mut t, mut io, _far, task) = connection();
    assert!(task.read(&mut io).is_pending());
    t.pass(IDLE / 2);
    assert_ready(task.write(&mut io, b""), 0);
    let none = [IoSlice::new(b"")];
    assert_ready(
        task.poll(&mut io, |io, context| {
            io.poll_write_vectored(context, &none)
        }),
        0,
    );
    t.pass(IDLE / 2);
    assert_timed_out(task.read(&mut io));
}

/// A connection that cannot write several slices at a time.
struct Simple;

impl AsyncWrite for Simple {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn vectored_writes_are_those_of_the_connection() {
    let t = Driven::new();
    assert!(!IdleIo::new(Simple, &t.timer, IDLE).is_write_vectored());
}

type Operation = fn(&Arc<Task>, &mut IdleIo<Stuck>) -> Poll<io::Result<()>>;

/// Operations that wait.
const OPERATIONS: [Operation; 4] = [
    |task, io| task.read(io).map_ok(drop),
    |task, io| task.write(io, b"x").map_ok(drop),
    |task, io| task.poll(io, |io, context| io.poll_flush(context)),
    |task, io| task.poll(io, |io, context| io.poll_shutdown(context)),
];

#[test]
fn operation_that_begins_after_a_rest_has_its_full_time() {
    let each = IdleTimes::new().reader(IDLE).writer(IDLE);
    for times in [IdleTimes::from(IDLE), each] {
        for operation in OPERATIONS {
            let (mut t, task) = (Driven::new(), Arc::<Task>::default());
            let mut io = IdleIo::new(Stuck, &t.timer, times);
            t.pass(IDLE * 3);
            assert!(operation(&task, &mut io).is_pending());
            t.pass(IDLE - TICK);
            assert!(operation(&task, &mut io).is_pending());
            t.pass(TICK);
            assert_timed_out(operation(&task, &mut io));
            assert_timed_out(operation(&task, &mut io));
        }
    }
}

/// The worker does not turn.
#[test]
fn operation_ends_by_the_clock_although_the_timer_is_late() {
    for operation in OPERATIONS {
        let (t, task) = (Driven::new(), Arc::<Task>::default());
        let mut io = IdleIo::new(Stuck, &t.timer, IDLE);
        assert!(operation(&task, &mut io).is_pending());
        t.clock.advance(IDLE - Duration::from_nanos(1));
        assert!(operation(&task, &mut io).is_pending());
        t.clock.advance(Duration::from_nanos(1));
        assert_timed_out(operation(&task, &mut io));
    }
}

#[test]
fn operation_that_was_given_up_counts_until_the_times_are_set() {
    let (t, mut io, _far, task) = connection();
    assert!(task.read(&mut io).is_pending());
    t.clock.advance(IDLE * 3);
    io.set_times(io.times());
    assert!(task.read(&mut io).is_pending());
    t.clock.advance(IDLE);
    assert_timed_out(task.read(&mut io));
}

#[test]
fn time_that_is_set_for_one_direction_leaves_that_of_the_other() {
    type Set = fn(&mut IoTimeout<Stuck>);
    let sets: [(Set, Set); 2] = [
        (
            |io| io.set_read_timeout(IDLE),
            |io| io.set_write_timeout(IDLE),
        ),
        (
            |io| io.set_write_timeout(IDLE),
            |io| io.set_read_timeout(IDLE),
        ),
    ];
    for (direction, (set, set_other)) in sets.into_iter().enumerate() {
        let poll = |task: &Arc<Task>, io: &mut IoTimeout<Stuck>| match direction {
            0 => task.read(io).map_ok(drop),
            _ => task.write(io, b"x").map_ok(drop),
        };
        let (mut t, task) = (Driven::new(), Arc::<Task>::default());
        let mut io = IoTimeout::new(Stuck, &t.timer);
        set(&mut io);
        assert!(poll(&task, &mut io).is_pending());
        t.pass(IDLE - TICK);
        set_other(&mut io);
        assert!(poll(&task, &mut io).is_pending());
        t.pass(TICK);
        assert_timed_out(poll(&task, &mut io));
        set(&mut io);
        assert!(poll(&task, &mut io).is_pending());
    }
}

/// As over a connection of axum: a request is read, a handler works, and then the answer is written
/// while the peer is slow.
#[test]
fn time_of_a_write_does_not_run_while_a_handler_works() {
    let mut t = Driven::new();
    let (near, mut far) = duplex(4);
    let mut io = IoTimeout::new(near, &t.timer);
    io.set_write_timeout(IDLE);
    assert_eq!((io.read_timeout(), io.write_timeout()), (None, Some(IDLE)));
    let task = Arc::<Task>::default();
    assert_ready(task.write(&mut far, b"get"), 3);
    assert_ready(task.read(&mut io), b"get".to_vec());
    // hyper reads meanwhile, to see whether the peer is gone.
    assert!(task.read(&mut io).is_pending());
    t.pass(IDLE * 9);
    assert!(task.read(&mut io).is_pending());
    assert_ready(task.write(&mut io, b"answer"), 4);
    assert!(task.write(&mut io, b"er").is_pending());
    t.pass(IDLE - TICK);
    assert!(task.write(&mut io, b"er").is_pending());
    assert_ready(task.read(&mut far), b"answ".to_vec());
    assert_ready(task.write(&mut io, b"er"), 2);
    // The next one has its own time.
    assert_ready(task.write(&mut io, b"more"), 2);
    t.pass(IDLE * 9);
    assert!(task.write(&mut io, b"re").is_pending());
    t.pass(IDLE);
    assert_timed_out(task.write(&mut io, b"re"));
    assert!(task.read(&mut io).is_pending(), "reads have no time");
    io.set_read_timeout(IDLE);
    t.pass(IDLE);
    assert_timed_out(task.read(&mut io));
    assert_ready(task.read(&mut far), b"ermo".to_vec());
    assert_ready(task.write(&mut io, b"re"), 2);
}

/// With idle times, or a time for reads, a handler that is slower loses its connection.
#[cfg(feature = "hyper")]
#[test]
fn server_of_hyper_reads_while_its_handler_works() {
    use std::convert::Infallible;

    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use tokio::io::AsyncWriteExt;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Limit {
        Idle,
        Reads,
        Writes,
    }

    trait Connection: AsyncRead + AsyncWrite + Send {}

    impl<T: AsyncRead + AsyncWrite + Send> Connection for T {}

    /// hyper's view of a connection of tokio.
    struct TokioIo(Pin<Box<dyn Connection>>);

    impl hyper::rt::Read for TokioIo {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            mut buffer: hyper::rt::ReadBufCursor<'_>,
        ) -> Poll<io::Result<()>> {
            let mut bytes = [0; 512];
            let room = buffer.remaining().min(bytes.len());
            let mut read = ReadBuf::new(&mut bytes[..room]);
            let result = self.0.as_mut().poll_read(context, &mut read);
            buffer.put_slice(read.filled());
            result
        }
    }

    impl hyper::rt::Write for TokioIo {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.0.as_mut().poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.as_mut().poll_flush(context)
        }

        fn poll_shutdown(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            self.0.as_mut().poll_shutdown(context)
        }
    }

    async fn answer(limit: Limit) -> String {
        let timer = HashedWheelTimer::new(ms(1), 512);
        let (near, mut far) = duplex(1_024);
        let limited: Pin<Box<dyn Connection>> = match limit {
            Limit::Idle => Box::pin(IdleIo::new(near, &timer, ms(50))),
            Limit::Reads => {
                let mut io = IoTimeout::new(near, &timer);
                io.set_read_timeout(ms(50));
                Box::pin(io)
            }
            Limit::Writes => {
                let mut io = IoTimeout::new(near, &timer);
                io.set_write_timeout(ms(50));
                Box::pin(io)
            }
        };
        let handler = service_fn(move |_| {
            let timer = timer.clone();
            async move {
                timer.sleep(ms(300)).await.unwrap();
                Ok::<_, Infallible>(hyper::Response::new(String::from("slow")))
            }
        });
        let io = TokioIo(limited);
        let server = tokio::spawn(
            http1::Builder::new()
                .keep_alive(false)
                .serve_connection(io, handler),
        );
        far.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let mut answer = Vec::new();
        far.read_to_end(&mut answer).await.unwrap();
        assert_eq!(server.await.unwrap().is_ok(), limit == Limit::Writes);
        String::from_utf8(answer).unwrap()
    }

    let runtime = runtime::Builder::new_current_thread().build().unwrap();
    for limit in [Limit::Idle, Limit::Reads] {
        assert_eq!(runtime.block_on(answer(limit)), "", "{limit:?}");
    }
    assert!(runtime.block_on(answer(Limit::Writes)).ends_with("slow"));
}
