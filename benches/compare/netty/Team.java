import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.IntConsumer;

/**
 * Threads that start to work at the same time, each on its own core if there are enough cores.
 *
 * They spin for a while before the start, so that the kernel distributes them over the cores. If
 * they slept or yielded instead, the kernel would often leave two threads on one core for longer
 * than a measurement takes. These two would then run one after the other, and the measurement would
 * show no contention.
 */
final class Team {
    private Team() {}

    /** Returns the time in nanoseconds from the start until the last thread has finished. */
    static long run(int size, IntConsumer work) throws InterruptedException {
        AtomicInteger waiting = new AtomicInteger();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Thread[] threads = new Thread[size];
        long[] ends = new long[size];
        for (int i = 0; i < size; i++) {
            int index = i;
            threads[i] = new Thread(() -> {
                waiting.getAndIncrement();
                while (waiting.get() <= size) {
                    Thread.onSpinWait();
                }
                try {
                    work.accept(index);
                } catch (Throwable t) {
                    failure.set(t);
                }
                ends[index] = System.nanoTime();
            }, "member-" + i);
            threads[i].start();
        }
        while (waiting.get() < size) {
            Thread.sleep(1);
        }
        Thread.sleep(20);
        Machine.Stopwatch stopwatch = new Machine.Stopwatch();
        waiting.getAndIncrement();
        long end = 0;
        for (int i = 0; i < size; i++) {
            threads[i].join();
            end = i == 0 ? ends[i] : Math.max(end, ends[i]);
        }
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        stopwatch.stop();
        return end - stopwatch.start;
    }
}
