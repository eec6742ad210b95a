import io.netty.util.HashedWheelTimer;
import java.util.concurrent.TimeUnit;

/** Netty's timer, started, and its thread. The timer lies in the old generation, and the young one is empty. */
final class Wheel implements AutoCloseable {
    /** Short enough for /proc/self/task/TID/comm. */
    static final String NAME = "wheel-worker";
    /** Netty's worker takes so many new timeouts per tick. */
    private static final int PER_TICK = 100_000;

    final HashedWheelTimer timer;
    private final long tick;
    private Thread worker;

    /** @param tick in nanoseconds */
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

    /** How long to wait until `count` timeouts are in the wheel. */
    long settling(int count, double atLeast) {
        return Math.max(Math.round(atLeast * 1e9), (count / PER_TICK + 5) * tick);
    }

    /** Waits until all that was scheduled or cancelled is off the worker's hands, which `pendingTimeouts` says. */
    void awaitNone() throws InterruptedException {
        long from = System.nanoTime();
        while (timer.pendingTimeouts() > 0) {
            Thread.sleep(1);
            if (!worker.isAlive() || System.nanoTime() - from > 120e9) {
                throw new IllegalStateException("the worker " + (worker.isAlive() ? "does not get done" : "has died"));
            }
        }
    }

    @Override
    public void close() {
        timer.stop();
    }
}
