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

/** Reads CPU time, garbage collections, memory and context switches. */
final class Machine {
    private static final OperatingSystemMXBean PROCESS =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static final List<GarbageCollectorMXBean> COLLECTORS = ManagementFactory.getGarbageCollectorMXBeans();
    private static final Path THREAD_DIRECTORIES = Path.of("/proc/self/task");

    private Machine() {}

    static long processCpu() {
        return PROCESS.getProcessCpuTime();
    }

    /**
     * Returns the CPU time of a thread, with a resolution of nanoseconds. The CPU time of the process
     * has a resolution of only a hundredth of a second.
     */
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
     * Runs a copying collection of all live objects. The collector follows references, so the nodes
     * of a wheel's linked lists become adjacent in memory, in list order. ParallelGC starts a full
     * collection with a copying one.
     */
    static void compact() {
        System.gc();
    }

    static long usedHeap() {
        collect();
        collect();
        return ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
    }

    /**
     * Returns the number of voluntary context switches of the threads with this name, or of all
     * threads if it is null.
     */
    static long contextSwitches(String name) throws IOException {
        long sum = 0;
        try (DirectoryStream<Path> threads = Files.newDirectoryStream(THREAD_DIRECTORIES)) {
            for (Path thread : threads) {
                try {
                    if (name == null || Files.readString(thread.resolve("comm")).trim().equals(name)) {
                        sum += Files.readAllLines(thread.resolve("status")).stream()
                            .filter(line -> line.startsWith("voluntary_ctxt_switches:"))
                            .mapToLong(line -> Long.parseLong(line.substring(line.indexOf(':') + 1).trim()))
                            .sum();
                    }
                } catch (NoSuchFileException ended) {
                    // The thread has ended since the directory was listed.
                }
            }
        }
        return sum;
    }

    /**
     * Measures wall time. No collection should happen meanwhile: prints a warning on stderr if one
     * did.
     */
    static final class Stopwatch {
        private final long collections = collections();
        final long start = System.nanoTime();

        long stop() {
            long ns = System.nanoTime() - start;
            long disturbances = collections() - collections;
            if (disturbances > 0) {
                System.err.println("netty: " + disturbances
                    + " garbage collections during a measurement: increase NETTY_HEAP to avoid them");
            }
            return ns;
        }
    }
}
