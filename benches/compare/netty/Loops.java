import static java.util.concurrent.TimeUnit.NANOSECONDS;

import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;

/** The timed loops, each a method of its own: when a workload calls it, the warm-up has had it compiled as a whole. */
final class Loops {
    private static final long HALF_A_MINUTE = 30_000_000_000L;

    private Loops() {}

    static void schedule(HashedWheelTimer timer, long[] delays) {
        for (long delay : delays) {
            timer.newTimeout(new Tasks.Count(1), delay, NANOSECONDS);
        }
    }

    static void scheduleAndKeep(HashedWheelTimer timer, long[] delays, Timeout[] kept) {
        for (int i = 0; i < delays.length; i++) {
            kept[i] = timer.newTimeout(new Tasks.Count(1), delays[i], NANOSECONDS);
        }
    }

    /** All for the same moment. */
    static void scheduleFor(HashedWheelTimer timer, long target, int count) {
        for (int i = 0; i < count; i++) {
            timer.newTimeout(new Tasks.Count(1), target - System.nanoTime(), NANOSECONDS);
        }
    }

    static void cancel(Timeout[] timeouts) {
        for (Timeout timeout : timeouts) {
            timeout.cancel();
        }
    }

    static void pairs(HashedWheelTimer timer, int count) {
        for (int i = 0; i < count; i++) {
            timer.newTimeout(new Tasks.Count(1), HALF_A_MINUTE, NANOSECONDS).cancel();
        }
    }

    /** Each schedules, and cancels one of a window, which `places` says; the new one takes its place. */
    static void window(HashedWheelTimer timer, long[] delays, int[] places, Timeout[] window) {
        for (int i = 0; i < delays.length; i++) {
            Timeout timeout = timer.newTimeout(new Tasks.Count(1), delays[i], NANOSECONDS);
            int place = places[i];
            window[place].cancel();
            window[place] = timeout;
        }
    }

    /** Each schedules, and cancels the one scheduled 64 before. */
    static void mix(HashedWheelTimer timer, long[] delays) {
        Timeout[] last = new Timeout[64];
        for (int i = 0; i < delays.length; i++) {
            Timeout old = last[i & 63];
            last[i & 63] = timer.newTimeout(new Tasks.Count(1), delays[i], NANOSECONDS);
            if (old != null) {
                old.cancel();
            }
        }
    }

    static void read(Tasks.Connection[] connections, int[] which) {
        for (int i : which) {
            connections[i].read();
        }
    }

    static void burst(HashedWheelTimer timer, long[] delays, int from, int to) {
        for (int i = from; i < to; i++) {
            timer.newTimeout(new Tasks.Late(System.nanoTime() + delays[i]), delays[i], NANOSECONDS);
        }
    }
}
