import static java.util.concurrent.TimeUnit.NANOSECONDS;

import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;

/**
 * The timed loops. Each one is a separate method, so that the JIT has compiled it as a whole during
 * the warm-up, before a workload calls it.
 */
final class Loops {
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

    /** Schedules all timeouts for the same point in time. */
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

    static void pairs(HashedWheelTimer timer, long[] delays) {
        for (long delay : delays) {
            timer.newTimeout(new Tasks.Count(1), delay, NANOSECONDS).cancel();
        }
    }

    /** Schedules a timeout per delay, and cancels the one that was scheduled 64 timeouts earlier. */
    static void mix(HashedWheelTimer timer, long[] delays, Timeout[] last) {
        for (int i = 0; i < delays.length; i++) {
            Timeout old = last[i & 63];
            last[i & 63] = timer.newTimeout(new Tasks.Count(1), delays[i], NANOSECONDS);
            if (old != null) {
                old.cancel();
            }
        }
    }

    /** Re-arms timeouts as users do who do not store the time: cancels and schedules again. */
    static void replace(HashedWheelTimer timer, Timeout[] timeouts, int[] indexes, long delay) {
        for (int i : indexes) {
            Timeout old = timeouts[i];
            old.cancel();
            timeouts[i] = timer.newTimeout(old.task(), delay, NANOSECONDS);
        }
    }

    static void read(Tasks.Connection[] connections, int[] indexes) {
        for (int i : indexes) {
            connections[i].read();
        }
    }

    static void burst(HashedWheelTimer timer, long[] delays, int from, int to) {
        for (int i = from; i < to; i++) {
            timer.newTimeout(new Tasks.RecordLateness(System.nanoTime() + delays[i]), delays[i], NANOSECONDS);
        }
    }
}
