import io.netty.util.HashedWheelTimer;
import java.util.concurrent.TimeUnit;

/**
 * A started Netty timer and its thread. The timer is in the old generation, and the young
 * generation is empty.
 */
final class Wheel implements AutoCloseable {
    /** Not longer than the 15 characters that /proc/self/task/TID/comm contains. */
    static final String NAME = "wheel-worker";
    /** The number of new timeouts that Netty's worker transfers to the wheel per tick. */
    private static final int TRANSFERS_PER_TICK = 100_000;

    final HashedWheelTimer timer;
    private final long tick;
    private Thread worker;

    /** @param tick the duration of a tick in nanoseconds */
    Wheel(long tick, int slots) {
        this.tick = tick;
        timer = new HashedWheelTimer(this::thread, tick, TimeUnit.NANOSECONDS, slots, false);
        timer.start();
        timer.newTimeout(new Tasks.Count(1), 30, TimeUnit.SECONDS).cancel();
        Machine.collect();
    }

    private Thread thread(Runnable work) {
        worker = new Thread(work, NAME);
        worker.setDaemon(true);
        return worker;
    }

    long workerCpu() {
        return Machine.cpuOf(worker);
    }

    /**
     * Returns the time in nanoseconds to wait until `count` timeouts are in the wheel, at least
     * `minSeconds`.
     */
    long transferTime(int count, double minSeconds) {
        return Math.max(Math.round(minSeconds * 1e9), (count / TRANSFERS_PER_TICK + 5) * tick);
    }

    /**
     * Waits until `pendingTimeouts` is 0: the worker has processed everything that was scheduled or
     * cancelled.
     */
    void awaitNoPending() throws InterruptedException {
        long start = System.nanoTime();
        while (timer.pendingTimeouts() > 0) {
            Thread.sleep(1);
            if (!worker.isAlive() || System.nanoTime() - start > 120e9) {
                throw new IllegalStateException("the worker " + (worker.isAlive() ? "has not finished in 120 s" : "has died"));
            }
        }
    }

    @Override
    public void close() {
        timer.stop();
    }
}
