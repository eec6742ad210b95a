import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.List;

/** CPU time, collections, memory, context switches. */
final class Machine {
    private static final OperatingSystemMXBean PROCESS =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static final List<GarbageCollectorMXBean> COLLECTORS = ManagementFactory.getGarbageCollectorMXBeans();
    private static final Path TASKS = Path.of("/proc/self/task");

    private Machine() {}

    static long processCpu() {
        return PROCESS.getProcessCpuTime();
    }

    /** To the nanosecond; that of the process comes in hundredths of a second. */
    static long cpuOf(Thread thread) {
        long ns = THREADS.getThreadCpuTime(thread.getId());
        if (ns < 0) {
            throw new IllegalStateException(thread.getName() + " has died");
        }
        return ns;
    }

    static String collector() {
        String name = COLLECTORS.get(0).getName();
        return name.startsWith("PS") ? "ParallelGC" : name.startsWith("G1") ? "G1" : name;
    }

    static long collections() {
        long sum = 0;
        for (GarbageCollectorMXBean collector : COLLECTORS) {
            sum += collector.getCollectionCount();
        }
        return sum;
    }

    static void collect() {
        System.gc();
    }

    /**
     * Has a copying collector go over all that lives: it follows the links, so a wheel's lists come to lie in their order.
     * ParallelGC begins a full collection with a copying one. G1's only slides, so it gets garbage until it copies.
     */
    static void pack() {
        if (collector().equals("ParallelGC")) {
            System.gc();
            return;
        }
        GarbageCollectorMXBean young = COLLECTORS.get(0);
        long before = young.getCollectionCount();
        while (young.getCollectionCount() == before) {
            garbage = new byte[1 << 16];
        }
    }

    private static volatile byte[] garbage;

    static long usedHeap() {
        collect();
        collect();
        return ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
    }

    /** Voluntary context switches so far, of the threads with this name, or of all (null). */
    static long switches(String name) throws IOException {
        long sum = 0;
        try (DirectoryStream<Path> tasks = Files.newDirectoryStream(TASKS)) {
            for (Path task : tasks) {
                try {
                    if (name == null || Files.readString(task.resolve("comm")).trim().equals(name)) {
                        sum += Files.readAllLines(task.resolve("status")).stream()
                            .filter(line -> line.startsWith("voluntary_ctxt_switches:"))
                            .mapToLong(line -> Long.parseLong(line.substring(line.indexOf(':') + 1).trim()))
                            .sum();
                    }
                } catch (NoSuchFileException ended) {
                    // A thread of the JVM that has just gone.
                }
            }
        }
        return sum;
    }

    /** Wall time of a part that no collection should disturb; says so on stderr if one did. */
    static final class Watch {
        private final long collections = collections();
        final long from = System.nanoTime();

        long stop() {
            long ns = System.nanoTime() - from;
            long disturbed = collections() - collections;
            if (disturbed > 0) {
                System.err.println("netty: " + disturbed + " collections in a timed part; a larger NETTY_HEAP avoids them");
            }
            return ns;
        }
    }
}
