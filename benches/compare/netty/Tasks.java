import io.netty.util.Timeout;
import io.netty.util.TimerTask;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** The tasks of the timeouts. */
final class Tasks {
    private Tasks() {}

    /** Adds a number to a counter when it runs. */
    static final class Count implements TimerTask {
        static final AtomicLong RAN = new AtomicLong();
        private final long by;

        Count(long by) {
            this.by = by;
        }

        @Override
        public void run(Timeout timeout) {
            RAN.getAndAdd(by);
        }
    }

    /**
     * Records its lateness. Only the worker writes to the array, and the worker has ended when the
     * array is read (threads that wait read the number).
     */
    static final class RecordLateness implements TimerTask {
        static long[] lateness;
        static volatile int recorded;
        private final long due;

        RecordLateness(long due) {
            this.due = due;
        }

        @Override
        public void run(Timeout timeout) {
            lateness[recorded++] = System.nanoTime() - due;
        }
    }

    /**
     * An idle timeout as in Netty's IdleStateHandler. A read only stores the time. When the timeout
     * fires, it schedules itself again for the remaining time. IdleStateHandler does both in one
     * thread, and its field is plain. Here the timer's worker reads the time that another thread
     * stored. An opaque store is the same instruction as a plain one, but C2 must not move it out
     * of the loop that is measured.
     */
    static final class Connection implements TimerTask {
        static final long IDLE = TimeUnit.SECONDS.toNanos(60);
        private static final VarHandle LAST_READ;
        private long lastRead = System.nanoTime();

        static {
            try {
                LAST_READ = MethodHandles.lookup().findVarHandle(Connection.class, "lastRead", long.class);
            } catch (ReflectiveOperationException e) {
                throw new ExceptionInInitializerError(e);
            }
        }

        void read() {
            LAST_READ.setOpaque(this, System.nanoTime());
        }

        @Override
        public void run(Timeout timeout) {
            long left = IDLE - (System.nanoTime() - (long) LAST_READ.getOpaque(this));
            if (left <= 0) {
                Count.RAN.getAndIncrement();
                left = IDLE;
            }
            timeout.timer().newTimeout(this, left, TimeUnit.NANOSECONDS);
        }
    }
}
