import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.IntConsumer;

/**
 * Threads that begin together, each on a core of its own if there are enough: they spin for a while first, so that the
 * kernel has spread them. If they slept or yielded until the start, it would often leave two on one core for longer than a
 * round takes; then they work in turn, and nothing is measured of how they get on with each other.
 */
final class Team {
    private Team() {}

    /** How long it took, in nanoseconds, from the start to the last one's end. */
    static long run(int size, IntConsumer work) throws InterruptedException {
        AtomicInteger waiting = new AtomicInteger();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Thread[] threads = new Thread[size];
        long[] ends = new long[size];
        for (int i = 0; i < size; i++) {
            int me = i;
            threads[i] = new Thread(() -> {
                waiting.getAndIncrement();
                while (waiting.get() <= size) {
                    Thread.onSpinWait();
                }
                try {
                    work.accept(me);
                } catch (Throwable t) {
                    failure.set(t);
                }
                ends[me] = System.nanoTime();
            }, "member-" + i);
            threads[i].start();
        }
        while (waiting.get() < size) {
            Thread.sleep(1);
        }
        Thread.sleep(20);
        Machine.Watch watch = new Machine.Watch();
        waiting.getAndIncrement();
        long end = 0;
        for (int i = 0; i < size; i++) {
            threads[i].join();
            end = i == 0 ? ends[i] : Math.max(end, ends[i]);
        }
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        watch.stop();
        return end - watch.from;
    }
}
