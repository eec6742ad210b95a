import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;

/** The rows by number of threads: as in src/workloads/threads.rs. */
final class Threads {
    private static final int BATCH = 256;
    private static final int BATCHES = 16;
    private static final long PROBE_DELAY = 20_000_000;
    /** Each caller's counter has cache lines of its own. */
    private static final int PADDING = 16;

    private final AtomicLong callersCpu = new AtomicLong();
    private final AtomicLongArray counts;
    private final int threads;
    private final long most;
    private volatile boolean isOver;

    private Threads(int threads, long most) {
        this.threads = threads;
        this.most = most;
        counts = new AtomicLongArray(threads * PADDING);
    }

    private long total() {
        long sum = 0;
        for (int i = 0; i < threads; i++) {
            sum += counts.get(i * PADDING);
        }
        return sum;
    }

    /** A caller that repeats an operation until the time is over. */
    private void call(String name, HashedWheelTimer timer, long[][] delays, int index) {
        Timeout[] window = new Timeout[64];
        for (int batch = 0; !isOver; batch = (batch + 1) % BATCHES) {
            switch (name) {
                case "schedule-many": Loops.schedule(timer, delays[batch]); break;
                case "schedule-cancel": Loops.pairs(timer, delays[batch]); break;
                default: Loops.mix(timer, delays[batch], window);
            }
            if (counts.addAndGet(index * PADDING, BATCH) > most) {
                isOver = true;
            }
        }
        callersCpu.addAndGet(Machine.cpuOf(Thread.currentThread()));
    }

    static String run(String name, long tick, int slots, SplitMix random, int size, int millis, long most)
            throws InterruptedException {
        Threads threads = new Threads(size, most);
        Tasks.RecordLateness.lateness = new long[millis];
        Tasks.RecordLateness.recorded = 0;
        int probes = 0;
        double rate;
        double cpu;
        double worker;
        try (Wheel wheel = new Wheel(tick, slots)) {
            Thread[] callers = new Thread[size];
            for (int i = 0; i < size; i++) {
                int index = i;
                long[][] delays = new long[BATCHES][];
                for (int j = 0; j < BATCHES; j++) {
                    delays[j] = random.delays(BATCH, 30, 90);
                }
                callers[i] = new Thread(() -> threads.call(name, wheel.timer, delays, index), "caller-" + i);
            }
            long cpuBefore = Machine.processCpu() - Machine.cpuOf(Thread.currentThread());
            long workerBefore = wheel.workerCpu();
            long begin = System.nanoTime();
            for (Thread caller : callers) {
                caller.start();
            }
            long from = begin;
            long first = 0;
            for (long ns = 0; ns < millis * 1_000_000L && !threads.isOver; ns = System.nanoTime() - begin) {
                if (first == 0 && ns >= millis * 1_000_000L / 6) {
                    from = System.nanoTime();
                    first = threads.total();
                }
                if (probes < millis) {
                    wheel.timer.newTimeout(new Tasks.RecordLateness(System.nanoTime() + PROBE_DELAY), PROBE_DELAY, TimeUnit.NANOSECONDS);
                    probes++;
                }
                Thread.sleep(2);
            }
            rate = (threads.total() - first) * 1e3 / (System.nanoTime() - from);
            threads.isOver = true;
            for (Thread caller : callers) {
                caller.join();
            }
            long until = System.nanoTime() + 30_000_000_000L;
            while (Tasks.RecordLateness.recorded < probes && System.nanoTime() < until) {
                Thread.sleep(2);
            }
            TimeUnit.NANOSECONDS.sleep(wheel.transferTime((int) threads.total(), 0));
            worker = wheel.workerCpu() - workerBefore;
            cpu = Machine.processCpu() - Machine.cpuOf(Thread.currentThread()) - cpuBefore;
        }
        if (Tasks.RecordLateness.recorded < probes) {
            throw new IllegalStateException("probes that never fired: " + (probes - Tasks.RecordLateness.recorded));
        }
        long[] late = Arrays.copyOf(Tasks.RecordLateness.lateness, probes);
        Arrays.sort(late);
        return Workloads.json("mops", rate, "cpu_ns", cpu / threads.total(), "worker_percent", 100 * worker / cpu,
            "late_p50", Workloads.at(late, 0.5), "late_p99", Workloads.at(late, 0.99));
    }
}
