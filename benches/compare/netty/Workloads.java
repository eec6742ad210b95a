import static java.util.concurrent.TimeUnit.NANOSECONDS;

import io.netty.util.Timeout;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/**
 * One method per workload of the protocol. All of them do the same steps: allocate the arrays;
 * build a timer and collect garbage; measure a loop; stop the timer. After the collection the timer
 * is in the old generation, as in a service, and the young generation is empty.
 */
final class Workloads {
    private Workloads() {}

    static String run(String name, Main.Keys keys) throws Exception {
        long tick = keys.count("tick_us", name.equals("lateness") || name.equals("idle") ? 1000 : 10_000) * 1000L;
        int slots = keys.count("slots", 512);
        SplitMix random = new SplitMix(keys.seed());
        switch (name) {
            case "burst": return unsupported("the JVM keeps its heap, which it touches when it starts");
            case "schedule": return schedule(tick, slots, random, keys.count("count"));
            case "random-cancel": return cancel(tick, slots, random, keys.count("count"));
            case "expire": return expire(tick, slots, random, keys.count("count"));
            case "memory": return memory(tick, slots, random, keys.count("count"));
            case "lateness": return lateness(tick, slots, random, keys.count("rate"), keys.number("seconds"));
            case "idle": return idle(tick, slots, keys.number("seconds"));
            case "rearm": return rearm(tick, slots, random, keys.count("count"), keys.count("resets"));
            case "schedule-many":
            case "schedule-cancel":
            case "mixed":
                return Threads.run(name, tick, slots, random, keys.count("threads"), keys.count("millis"), keys.count("most", Integer.MAX_VALUE));
            default: return unsupported("unknown workload");
        }
    }

    private static String unsupported(String why) {
        return "{\"unsupported\":\"" + why + "\"}";
    }

    // --- costs of calls -------------------------------------------------------------------------------------------

    static String schedule(long tick, int slots, SplitMix random, int count) {
        long[] delays = random.delays(count, 30, 90);
        try (Wheel wheel = new Wheel(tick, slots)) {
            Machine.Stopwatch stopwatch = new Machine.Stopwatch();
            Loops.schedule(wheel.timer, delays);
            return json("ns", (double) stopwatch.stop() / count);
        }
    }

    static String cancel(long tick, int slots, SplitMix random, int count) throws InterruptedException {
        long[] delays = random.delays(count, 30, 90);
        Timeout[] timeouts = new Timeout[count];
        try (Wheel wheel = new Wheel(tick, slots)) {
            Loops.scheduleAndKeep(wheel.timer, delays, timeouts);
            random.shuffle(timeouts);
            NANOSECONDS.sleep(wheel.transferTime(count, 30 * tick / 1e9));
            long cpu = wheel.workerCpu();
            long calls = Machine.cpuOf(Thread.currentThread());
            Machine.Stopwatch stopwatch = new Machine.Stopwatch();
            Loops.cancel(timeouts);
            double ns = (double) stopwatch.stop() / count;
            calls = Machine.cpuOf(Thread.currentThread()) - calls;
            wheel.awaitNoPending();
            double worker = (double) (wheel.workerCpu() - cpu) / count;
            return json("ns", ns, "worker_ns", worker, "sum_ns", worker + (double) calls / count);
        }
    }

    static String rearm(long tick, int slots, SplitMix random, int count, int resets) throws InterruptedException {
        Tasks.Connection[] connections = new Tasks.Connection[count];
        int[] indexes = random.indexes(resets, count);
        try (Wheel wheel = new Wheel(tick, slots)) {
            for (int i = 0; i < count; i++) {
                connections[i] = new Tasks.Connection();
                wheel.timer.newTimeout(connections[i], Tasks.Connection.IDLE, NANOSECONDS);
            }
            NANOSECONDS.sleep(wheel.transferTime(count, 0.3));
            Machine.Stopwatch stopwatch = new Machine.Stopwatch();
            Loops.read(connections, indexes);
            double ns = (double) stopwatch.stop() / resets;
            double[] replaced = replaceRandomly(tick, slots, indexes, count);
            return json("ns", ns, "replace_ns", replaced[0], "replace_cpu_ns", replaced[1]);
        }
    }

    /** Returns the wall time and the CPU time to re-arm a timeout by cancelling and scheduling it. */
    private static double[] replaceRandomly(long tick, int slots, int[] indexes, int count) throws InterruptedException {
        long[] delays = new long[count];
        Arrays.fill(delays, Tasks.Connection.IDLE);
        Timeout[] timeouts = new Timeout[count];
        try (Wheel wheel = new Wheel(tick, slots)) {
            Loops.scheduleAndKeep(wheel.timer, delays, timeouts);
            NANOSECONDS.sleep(wheel.transferTime(count, 0.3));
            // These two threads use all CPU time of the process, because no garbage is collected
            // meanwhile.
            long cpu = Machine.cpuOf(Thread.currentThread()) + wheel.workerCpu();
            Machine.Stopwatch stopwatch = new Machine.Stopwatch();
            Loops.replace(wheel.timer, timeouts, indexes, Tasks.Connection.IDLE);
            double ns = (double) stopwatch.stop() / indexes.length;
            NANOSECONDS.sleep(wheel.transferTime(indexes.length, 0.3));
            cpu = Machine.cpuOf(Thread.currentThread()) + wheel.workerCpu() - cpu;
            return new double[] {ns, (double) cpu / indexes.length};
        }
    }

    // --- costs of the worker --------------------------------------------------------------------------------------

    static String expire(long tick, int slots, SplitMix random, int count) throws InterruptedException {
        return json(expire(tick, slots, random, count, false), expire(tick, slots, random, count, true));
    }

    private static String json(WorkerCosts scattered, WorkerCosts compacted) {
        return json("ns", scattered.expiry, "life_ns", scattered.life, "sum_ns", scattered.sum, "packed_ns", compacted.expiry,
            "packed_life_ns", compacted.life);
    }

    private static WorkerCosts expire(long tick, int slots, SplitMix random, int count, boolean compact) throws InterruptedException {
        // An estimate of the seconds for scheduling, the transfer to the wheel and the collection.
        double setup = 0.35 + count * (compact ? 7e-7 : 2e-7);
        double from = setup < 0.9 ? 1 : Math.max(3, setup);
        long[] delays = random.delays(count, from, from + 1);
        try (Wheel wheel = new Wheel(tick, slots)) {
            Tasks.Count.RAN.set(0);
            return new WorkerCosts(wheel, count, compact, () -> Loops.schedule(wheel.timer, delays));
        }
    }

    /** CPU time per timeout in nanoseconds, measured until all timeouts have run. */
    private static final class WorkerCosts {
        /** The worker's from when all are in the wheel. */
        final double expiry;
        /** The worker's from before the first one was scheduled. */
        final double life;
        /** The same, with the caller's. */
        final double sum;

        WorkerCosts(Wheel wheel, int count, boolean compact, Runnable schedule) throws InterruptedException {
            long first = wheel.workerCpu();
            long calls = Machine.cpuOf(Thread.currentThread());
            schedule.run();
            calls = Machine.cpuOf(Thread.currentThread()) - calls;
            NANOSECONDS.sleep(wheel.transferTime(count, 0.3));
            if (compact) {
                Machine.compact();
            }
            Machine.Stopwatch stopwatch = new Machine.Stopwatch();
            long before = wheel.workerCpu();
            if (Tasks.Count.RAN.get() > 0) {
                throw new IllegalStateException("a timeout fired before all were in the wheel");
            }
            wheel.awaitNoPending();
            long after = wheel.workerCpu();
            // Netty decrements its count of pending timeouts immediately before the last task runs.
            Thread.sleep(1);
            if (Tasks.Count.RAN.get() != count) {
                throw new IllegalStateException(Tasks.Count.RAN + " of " + count + " ran");
            }
            stopwatch.stop();
            expiry = (double) (after - before) / count;
            life = (double) (after - first) / count;
            sum = life + (double) calls / count;
        }
    }

    static String memory(long tick, int slots, SplitMix random, int count) throws InterruptedException {
        long[] delays = random.delays(count, 300, 360);
        try (Wheel wheel = new Wheel(tick, slots)) {
            long before = Machine.usedHeap();
            Loops.schedule(wheel.timer, delays);
            NANOSECONDS.sleep(wheel.transferTime(count, 1));
            long grown = Machine.usedHeap() - before;
            return json("bytes", (double) grown / count);
        }
    }

    static String idle(long tick, int slots, double seconds) throws Exception {
        Thread.sleep(1000);
        double[] without = activity(null, seconds);
        try (Wheel wheel = new Wheel(tick, slots)) {
            Thread.sleep(1000);
            double[] with = activity(wheel, seconds);
            System.err.printf(Locale.ROOT, "netty: idle: all threads: %.1f wake-ups and %.2f ms of CPU time per second;"
                + " without a timer %.1f and %.2f%n", with[1], with[2], without[1], without[2]);
            return json("wakeups", with[0], "cpu_ms", with[3]);
        }
    }

    /**
     * Returns per second: wake-ups of the worker and of all threads, CPU time in ms of all threads
     * and of the worker.
     */
    private static double[] activity(Wheel wheel, double seconds) throws Exception {
        double[] before = counters(wheel);
        long from = System.nanoTime();
        NANOSECONDS.sleep(Math.round(seconds * 1e9));
        double[] after = counters(wheel);
        double elapsed = (System.nanoTime() - from) / 1e9;
        for (int i = 0; i < after.length; i++) {
            after[i] = (after[i] - before[i]) / elapsed;
        }
        return after;
    }

    private static double[] counters(Wheel wheel) throws Exception {
        return new double[] {Machine.contextSwitches(Wheel.NAME), Machine.contextSwitches(null), Machine.processCpu() / 1e6,
            wheel == null ? 0 : wheel.workerCpu() / 1e6};
    }

    static String lateness(long tick, int slots, SplitMix random, int rate, double seconds) throws InterruptedException {
        int count = (int) Math.round(rate * seconds);
        long[] delays = random.delays(count, 0, 1);
        Tasks.RecordLateness.lateness = new long[count];
        Tasks.RecordLateness.recorded = 0;
        try (Wheel wheel = new Wheel(tick, slots)) {
            long from = System.nanoTime();
            int scheduled = 0;
            for (long ms = 1; scheduled < count; ms++) {
                long next = from + TimeUnit.MILLISECONDS.toNanos(ms);
                for (long left = next - System.nanoTime(); left > 0; left = next - System.nanoTime()) {
                    LockSupport.parkNanos(left);
                }
                int target = (int) Math.min(count, (long) rate * ms / 1000);
                Loops.burst(wheel.timer, delays, scheduled, target);
                scheduled = target;
            }
            wheel.awaitNoPending();
        }
        if (Tasks.RecordLateness.recorded != count) {
            throw new IllegalStateException(Tasks.RecordLateness.recorded + " of " + count + " ran");
        }
        return percentiles(Tasks.RecordLateness.lateness);
    }

    private static String percentiles(long[] lateness) {
        Arrays.sort(lateness);
        StringBuilder cdf = new StringBuilder();
        double[] tail = {0.99, 0.995, 0.999, 0.9999, 1};
        for (int i = 0; i < 50 + tail.length; i++) {
            double fraction = i < 50 ? i / 50.0 : tail[i - 50];
            cdf.append(String.format(Locale.ROOT, "%s[%.4f,%.4f]", i == 0 ? "" : ",", at(lateness, fraction), fraction));
        }
        String numbers = json("p50", at(lateness, 0.5), "p99", at(lateness, 0.99), "p999", at(lateness, 0.999),
            "max", at(lateness, 1));
        return numbers.substring(0, numbers.length() - 1) + ",\"cdf\":[" + cdf + "]}";
    }

    static double at(long[] sorted, double fraction) {
        int rank = (int) Math.ceil(fraction * sorted.length);
        return sorted[Math.max(0, rank - 1)] / 1e6;
    }

    // --- JSON -----------------------------------------------------------------------------------------------------

    /** Formats members as a JSON object. The arguments are alternating names and numbers. */
    static String json(Object... members) {
        StringBuilder json = new StringBuilder("{");
        for (int i = 0; i < members.length; i += 2) {
            Object number = members[i + 1];
            json.append(i == 0 ? "\"" : ",\"").append(members[i]).append("\":");
            json.append(number instanceof Long ? number : String.format(Locale.ROOT, "%.4f", number));
        }
        return json.append('}').toString();
    }
}
