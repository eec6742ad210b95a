import static java.util.concurrent.TimeUnit.NANOSECONDS;

import io.netty.util.Timeout;

/**
 * Runs each timed loop, and both sides of the timer, until C2 has compiled them, so that the first
 * measurement is like the later ones. The calls are short and frequent, so that C2 compiles the
 * loops as whole methods instead of replacing them while they run. The ticks are short and the
 * wheels small, so that the worker's own loops are called often, too.
 */
final class WarmUp {
    private static final int SMALL = 2_000;
    private static final long MS = 1_000_000;

    private WarmUp() {}

    static void all() {
        try {
            SplitMix random = new SplitMix(42);
            for (int pass = 0; pass < 3; pass++) {
                calls(random);
                expiry(random);
                idle(random);
                Workloads.schedule(10 * MS, 512, random, 300_000);
                Workloads.cancel(10 * MS, 512, random, 300_000);
                for (String name : new String[] {"schedule-many", "schedule-cancel", "mixed"}) {
                    Threads.run(name, MS, 512, random, 2, 200, 1_000_000);
                }
                Workloads.rearm(10 * MS, 512, random, 10_000, 300_000);
            }
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private static void calls(SplitMix random) throws InterruptedException {
        long[] delays = random.delays(SMALL, 30, 90);
        int[] indexes = random.indexes(SMALL, SMALL);
        Timeout[] kept = new Timeout[SMALL];
        Timeout[] window = new Timeout[64];
        try (Wheel wheel = new Wheel(MS, 64)) {
            for (int i = 0; i < 300; i++) {
                Loops.schedule(wheel.timer, delays);
                Loops.pairs(wheel.timer, delays);
                Loops.scheduleAndKeep(wheel.timer, delays, kept);
                Loops.replace(wheel.timer, kept, indexes, Tasks.Connection.IDLE);
                Loops.cancel(kept);
                Loops.mix(wheel.timer, delays, window);
            }
        }
    }

    /** Some timeouts fire, and others stay in the wheel for more rounds. */
    private static void expiry(SplitMix random) throws InterruptedException {
        long[] longer = random.delays(20_000, 30, 90);
        long[] shorter = random.delays(SMALL, 0, 0.05);
        try (Wheel wheel = new Wheel(MS, 64)) {
            Loops.schedule(wheel.timer, longer);
            for (int i = 0; i < 250; i++) {
                Loops.schedule(wheel.timer, shorter);
                Loops.scheduleFor(wheel.timer, System.nanoTime() + 3 * MS, SMALL);
                NANOSECONDS.sleep(2 * MS);
            }
        }
    }

    private static void idle(SplitMix random) {
        Tasks.Connection[] connections = new Tasks.Connection[SMALL];
        int[] indexes = random.indexes(SMALL, SMALL);
        for (int i = 0; i < SMALL; i++) {
            connections[i] = new Tasks.Connection();
        }
        for (int i = 0; i < 2_000; i++) {
            Loops.read(connections, indexes);
        }
    }
}
