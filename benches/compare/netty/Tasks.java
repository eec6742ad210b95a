import io.netty.util.Timeout;
import io.netty.util.TimerTask;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** What the timeouts do. */
final class Tasks {
    private Tasks() {}

    /** Counts that it has run. */
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

    /** Notes by how much it was late. The worker alone writes, and it has ended when the array is read. */
    static final class Late implements TimerTask {
        static long[] lateness;
        static int noted;
        private final long due;

        Late(long due) {
            this.due = due;
        }

        @Override
        public void run(Timeout timeout) {
            lateness[noted++] = System.nanoTime() - due;
        }
    }

    /**
     * A connection as IdleStateHandler has it: a read stores the time and no more; when the timeout fires, it schedules
     * what is left. There both happen in one thread; here the timer's worker reads what others have stored, for which the
     * weakest access is enough, and on x86-64 it costs what a plain one does.
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
