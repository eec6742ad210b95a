import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.logging.LogManager;

/**
 * Writes scripts, runs each on Netty's HashedWheelTimer, and records what Netty does. README.md describes the format,
 * and ./remake is the command. The output is the same each time, because the random numbers are seeded.
 */
public final class Oracle {
    static final long MS = 1_000_000;
    static final int[] SIZES = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};

    public static void main(String[] args) throws Exception {
        // Netty logs warnings about short ticks and many timers.
        LogManager.getLogManager().reset();
        Path folder = Path.of(args[0]);
        Map<String, List<String>> families = new TreeMap<>();
        families.put("alone", alone());
        families.put("around", around());
        families.put("exact", exact());
        families.put("cancel", cancel());
        families.put("goal", goal());
        families.put("chain", chain());
        families.put("limit", limit());
        families.put("stop", stop());
        families.put("random", random());
        families.put("old", old());
        families.put("build", build());
        families.put("differs", differs());
        families.put("real", Real.all());
        for (Map.Entry<String, List<String>> family : families.entrySet()) {
            List<String> lines = family.getValue();
            lines.add(0, "# Made by ./remake with Netty " + version() + "; see README.md.");
            Files.write(folder.resolve(family.getKey() + ".txt"), lines);
            long scripts = lines.stream().filter(line -> line.startsWith("script ") || line.startsWith("build ")).count();
            System.out.println(family.getKey() + ": " + scripts);
        }
    }

    static String version() throws IOException {
        String at = "META-INF/maven/io.netty/netty-common/pom.properties";
        try (InputStream in = HashedWheelTimer.class.getClassLoader().getResourceAsStream(at)) {
            if (in == null) {
                return "of an unknown version";
            }
            String text = new String(in.readAllBytes(), StandardCharsets.UTF_8);
            return text.lines().filter(line -> line.startsWith("version=")).findFirst().orElse("?").substring(8);
        }
    }

    // --- one script, tick by tick ------------------------------------------------------------------------------

    /** A timer of Netty whose thread never starts. The clock is a number, and this class processes each tick. */
    static final class Script {
        final List<String> lines = new ArrayList<>();
        final HashedWheelTimer timer;
        final long tick;
        final int slots;
        private final Object worker;
        private final Object[] wheel;
        private final List<Timeout> timeouts = new ArrayList<>();
        private List<String> events = new ArrayList<>();
        long now;

        Script(String name, long tick, int slots) throws Exception {
            this(name, tick, slots, 0, 0);
        }

        /** `from` is the first tick, as if the timer had been running for a long time. */
        Script(String name, long tick, int slots, int limit, long from) throws Exception {
            ThreadFactory unused = Thread::new;
            timer = new HashedWheelTimer(unused, tick, TimeUnit.NANOSECONDS, slots, false, limit);
            worker = get(timer, "worker");
            wheel = (Object[]) get(timer, "wheel");
            this.tick = (long) get(timer, "tickDuration");
            this.slots = wheel.length;
            // As if the thread were running, so that newTimeout neither starts it nor waits for it.
            set(timer, "workerState", HashedWheelTimer.WORKER_STATE_STARTED);
            set(timer, "startTime", 1L);
            set(worker, "tick", from);
            now = from * this.tick;
            lines.add("script " + name + " " + tick + " " + slots + " " + limit + " " + from + " = " + this.tick + " "
                + this.slots);
        }

        int size() {
            return timeouts.size();
        }

        boolean isPending(int id) {
            Timeout timeout = timeouts.get(id);
            return timeout != null && !timeout.isCancelled() && !timeout.isExpired();
        }

        /** Adjusts the delay so that the deadline is not on a tick, where Netty is a tick late. */
        long off(long delay) {
            return (now + delay) % tick == 0 ? delay + 1 : delay;
        }

        /** The number of ticks that have been processed. */
        long ticks() throws Exception {
            return (long) get(worker, "tick");
        }

        Script add(long delay, String... task) throws Exception {
            schedule(delay, List.of(task));
            String what = task.length == 0 ? "" : " " + String.join(" ", task);
            return answer("+ " + delay + what);
        }

        Script fill(int count, long delay) throws Exception {
            for (int i = 0; i < count; i++) {
                schedule(delay, List.of());
            }
            return answer("f " + count + " " + delay);
        }

        Script cancel(int id) throws Exception {
            tryCancel(id);
            return answer("x " + id);
        }

        /** Time passes, and the worker does nothing. */
        Script stall(long by) throws Exception {
            now += by;
            return answer("> " + by);
        }

        /** Time passes, and then the worker processes all due ticks. */
        Script turn(long by) throws Exception {
            now += by;
            catchUp();
            return answer("@ " + by);
        }

        /** Processes the next `count` ticks, each on time. */
        Script run(long count) throws Exception {
            for (long i = 0; i < count; i++) {
                now = (now / tick + 1) * tick;
                catchUp();
            }
            return answer("* " + count);
        }

        Script stop() throws Exception {
            Set<Timeout> rest = stopWithoutThread();
            TreeSet<Integer> ids = new TreeSet<>();
            for (Timeout timeout : rest) {
                ids.add(timeouts.indexOf(timeout));
            }
            ids.forEach(id -> events.add("" + id));
            events.add("c" + rest.stream().filter(Timeout::isCancelled).count());
            return answer("!");
        }

        /** Netty's stop without a thread: calls the last part of the worker's run in an interrupted thread. */
        private Set<Timeout> stopWithoutThread() throws Exception {
            if ((int) get(timer, "workerState") == HashedWheelTimer.WORKER_STATE_STARTED) {
                set(timer, "workerState", HashedWheelTimer.WORKER_STATE_SHUTDOWN);
                Thread.currentThread().interrupt();
                call(worker, "run");
                Thread.interrupted();
                set(timer, "workerState", HashedWheelTimer.WORKER_STATE_STARTED);
            }
            return timer.stop();
        }

        /** Calls stop between newTimeout's check of the state and its push. */
        Script stopWithinAdd(long delay) throws Exception {
            Queue<Object> queue = queue();
            set(timer, "timeouts", new LinkedList<Object>() {
                @Override
                public boolean add(Object timeout) {
                    try {
                        stopWithoutThread().forEach(rest -> events.add("" + timeouts.indexOf(rest)));
                    } catch (Exception e) {
                        throw new AssertionError(e);
                    }
                    return queue.add(timeout);
                }

                @Override
                public Object poll() {
                    return queue.poll();
                }
            });
            Timeout timeout = timer.newTimeout(ignored -> { }, delay, TimeUnit.NANOSECONDS);
            timeouts.add(timeout);
            stopWithoutThread().forEach(rest -> events.add("" + timeouts.indexOf(rest)));
            events.add(timeout.isCancelled() || timeout.isExpired() ? "ended" : "lost");
            return answer("+! " + delay);
        }

        @SuppressWarnings("unchecked")
        private Queue<Object> queue() throws Exception {
            return (Queue<Object>) get(timer, "timeouts");
        }

        private void schedule(long delay, List<String> task) {
            int id = timeouts.size();
            timeouts.add(null);
            try {
                Timeout timeout = timer.newTimeout(ignored -> perform(id, task), delay, TimeUnit.NANOSECONDS);
                // Netty computed it from the real clock, unless it is infinite.
                if ((long) get(timeout, "deadline") != Long.MAX_VALUE) {
                    set(timeout, "deadline", now + delay);
                }
                timeouts.set(id, timeout);
            } catch (RejectedExecutionException full) {
                events.add("full");
            } catch (IllegalStateException stopped) {
                events.add("stopped");
            } catch (Exception e) {
                throw new AssertionError(e);
            }
        }

        private void perform(int id, List<String> task) {
            try {
                events.add((ticks() + 1) + ":" + id);
                for (int i = 0; i < task.size(); i++) {
                    String step = task.get(i);
                    if (step.startsWith("x")) {
                        tryCancel(Integer.parseInt(step.substring(1)));
                    } else {
                        // The rest of the list is the task of the new timeout.
                        schedule(Long.parseLong(step.substring(1)), task.subList(i + 1, task.size()));
                        break;
                    }
                }
            } catch (Exception e) {
                // Netty would only log it.
                e.printStackTrace();
                System.exit(1);
            }
        }

        private void tryCancel(int id) {
            events.add("x" + id + (timeouts.get(id).cancel() ? "y" : "n"));
        }

        private void catchUp() throws Exception {
            for (long next = ticks(); (next + 1) * tick <= now; next++) {
                call(worker, "processCancelledTasks");
                call(worker, "transferTimeoutsToBuckets");
                Object bucket = wheel[(int) (next & (slots - 1))];
                Method expire = bucket.getClass().getDeclaredMethod("expireTimeouts", long.class);
                expire.setAccessible(true);
                expire.invoke(bucket, now);
                set(worker, "tick", next + 1);
            }
        }

        /** Records the operation and its results. */
        private Script answer(String operation) {
            long alive = 0;
            for (int id = 0; id < timeouts.size(); id++) {
                alive += isPending(id) ? 1 : 0;
            }
            events.add(timer.pendingTimeouts() + "/" + alive);
            lines.add(operation + " = " + String.join(" ", events));
            events = new ArrayList<>();
            return this;
        }
    }

    static Field field(Object of, String name) throws Exception {
        Field field = of.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }

    static Object get(Object of, String name) throws Exception {
        return field(of, name).get(of);
    }

    static void set(Object of, String name, Object value) throws Exception {
        field(of, name).set(of, value);
    }

    static void call(Object on, String name) throws Exception {
        Method method = on.getClass().getDeclaredMethod(name);
        method.setAccessible(true);
        method.invoke(on);
    }

    // --- the families ------------------------------------------------------------------------------------------

    /** The multiples of a tick and of a wheel that are boundary cases. */
    static TreeSet<Long> multiples(int slots) {
        TreeSet<Long> multiples = new TreeSet<>();
        for (long rounds = 0; rounds <= 3; rounds++) {
            for (long offset = -1; offset <= 1; offset++) {
                multiples.add(Math.max(0, rounds * slots + offset));
            }
        }
        multiples.add(2L);
        multiples.add(5L * slots + 2);
        return multiples;
    }

    /** One timeout, a nanosecond before or after each such multiple, or half a tick after it. */
    static List<String> alone() throws Exception {
        List<String> lines = new ArrayList<>();
        for (int slots : SIZES) {
            for (long multiple : multiples(slots)) {
                for (int offset = -1; offset <= 1; offset++) {
                    long delay = multiple * MS + (offset == 0 ? MS / 2 : offset);
                    if (delay >= 0) {
                        Script script = new Script("alone-" + slots + "-" + multiple + "-" + (offset + 1), MS, slots);
                        // Every second script starts at a later tick.
                        if (multiple % 2 == 1) {
                            script.run(slots / 2 + 1);
                        }
                        script.add(delay).run(multiple + 2);
                        lines.addAll(script.lines);
                    }
                }
            }
        }
        return lines;
    }

    /** Many of these delays at once, in random order, from any time within a tick; in single ticks or in jumps. */
    static List<String> around() throws Exception {
        List<String> lines = new ArrayList<>();
        long[] ticks = {MS, 10 * MS, 100 * MS, 7_300_001, 1_000_003};
        int[] sizes = {1, 2, 3, 4, 5, 8, 16, 32, 64, 100, 128, 256, 300, 512};
        for (int slots : sizes) {
            for (int variant = 0; variant < 8; variant++) {
                Random random = new Random(slots * 31L + variant);
                long tick = ticks[variant % ticks.length];
                Script script = new Script("around-" + slots + "-" + variant, tick, slots);
                script.turn(random.nextInt(3 * slots) * tick + random.nextInt((int) tick));
                List<Long> delays = new ArrayList<>();
                for (long multiple : multiples(script.slots)) {
                    for (long offset : new long[] {-tick / 2, -1, 1, tick / 3}) {
                        delays.add(Math.max(0, multiple * tick + offset));
                    }
                }
                delays.add(Long.MAX_VALUE);
                Collections.shuffle(delays, random);
                for (long delay : delays.subList(0, Math.min(delays.size(), 24))) {
                    // Around the tick boundaries themselves, not around multiples after the call.
                    long aligned = delay > tick && delay < Long.MAX_VALUE && random.nextBoolean()
                        ? delay - script.now % tick : delay;
                    script.add(script.off(aligned));
                }
                long most = 5L * script.slots + 6;
                if (variant % 3 == 2) {
                    for (long passed = 0; passed < most; ) {
                        long by = 1 + random.nextInt((int) most);
                        script.turn(by * tick + random.nextInt((int) tick));
                        passed += by;
                    }
                } else {
                    script.run(most);
                }
                lines.addAll(script.stop().lines);
            }
        }
        return lines;
    }

    /** Deadlines on a tick, which Netty fires a tick later than necessary. */
    static List<String> exact() throws Exception {
        List<String> lines = new ArrayList<>();
        for (int slots : SIZES) {
            for (int variant = 0; variant < 6; variant++) {
                Random random = new Random(slots * 37L + variant);
                long tick = variant % 2 == 0 ? 10 * MS : 7_300_001;
                Script script = new Script("exact-" + slots + "-" + variant, tick, slots);
                if (variant % 3 == 1) {
                    script.run(1 + random.nextInt(2 * slots));
                }
                List<Long> multiples = new ArrayList<>(multiples(slots));
                Collections.shuffle(multiples, random);
                for (long multiple : multiples) {
                    script.add(Math.max(0, multiple * tick + (random.nextInt(3) == 0 ? random.nextInt(3) - 1 : 0)));
                }
                script.add(tick);
                if (variant >= 4) {
                    script.turn(random.nextInt(4 * slots) * tick + 5);
                    // At a boundary that the worker has not processed yet.
                    script.stall(tick - script.now % tick).add(0).add(tick);
                }
                script.run(5L * slots + 4);
                lines.addAll(script.stop().lines);
            }
        }
        return lines;
    }

    /** Cancels in the queue, in the wheel (in this round or a later one), when due, when expired, and twice. */
    static List<String> cancel() throws Exception {
        List<String> lines = new ArrayList<>();
        for (int slots : SIZES) {
            for (int variant = 0; variant < 6; variant++) {
                Random random = new Random(slots * 41L + variant);
                long tick = 10 * MS;
                Script script = new Script("cancel-" + slots + "-" + variant, tick, slots);
                script.turn(random.nextInt((int) tick));
                for (int i = 0; i < 16; i++) {
                    script.add(script.off(random.nextInt((int) (3L * slots + 2)) * tick + random.nextInt((int) tick)));
                }
                for (int i = 0; i < 4; i++) {
                    script.cancel(random.nextInt(16));
                }
                for (int round = 0; round < 4; round++) {
                    switch (variant % 3) {
                        case 0 -> script.run(1 + random.nextInt(slots));
                        case 1 -> script.turn(random.nextInt((int) Math.min(2L * slots * tick, 1 << 30)));
                        // The timeout is due, but the worker is late.
                        default -> script.run(random.nextInt(slots + 1)).stall(random.nextInt(3) * tick + tick / 2);
                    }
                    script.cancel(random.nextInt(16)).cancel(random.nextInt(16));
                }
                script.run(3L * slots + 4);
                lines.addAll(script.stop().lines);
            }
        }
        return lines;
    }

    /** Tasks that cancel others: in their own tick, in their slot but in another round, and in other slots. */
    static List<String> goal() throws Exception {
        List<String> lines = new ArrayList<>();
        for (int slots : SIZES) {
            for (int variant = 0; variant < 7; variant++) {
                Random random = new Random(slots * 43L + variant);
                long tick = 10 * MS;
                Script script = new Script("goal-" + slots + "-" + variant, tick, slots);
                long goal = random.nextInt(2 * slots) * tick + 3;
                int count = 12;
                int canceller = random.nextInt(count);
                for (int id = 0; id < count; id++) {
                    long delay = switch (random.nextInt(variant < 4 ? 4 : 3)) {
                        case 0, 1 -> goal;
                        case 2 -> goal + (long) slots * tick;
                        default -> random.nextInt(3 * slots) * tick + 7;
                    };
                    if (id == canceller) {
                        List<String> targets = new ArrayList<>();
                        // All timeouts exist when the task runs, although later ones do not exist yet here.
                        for (int target = 0; target < count; target++) {
                            if (random.nextInt(3) > 0) {
                                targets.add("x" + target);
                            }
                        }
                        script.add(goal, targets.toArray(String[]::new));
                    } else {
                        script.add(delay);
                    }
                }
                switch (variant % 3) {
                    case 0 -> script.run(3L * slots + 3);
                    case 1 -> script.turn(goal + tick).run(2).turn(2L * slots * tick).run(2);
                    default -> script.turn(goal + 3L * slots * tick).run(1);
                }
                lines.addAll(script.stop().lines);
            }
        }
        return lines;
    }

    /** Tasks that schedule others, on time and when the worker catches up. */
    static List<String> chain() throws Exception {
        List<String> lines = new ArrayList<>();
        for (int slots : SIZES) {
            for (int variant = 0; variant < 5; variant++) {
                Random random = new Random(slots * 47L + variant);
                long tick = 10 * MS;
                Script script = new Script("chain-" + slots + "-" + variant, tick, slots);
                for (int i = 0; i < 6; i++) {
                    String[] next = new String[random.nextInt(5)];
                    for (int link = 0; link < next.length; link++) {
                        // Never on a tick, because all times are tenths of a tick plus a nanosecond.
                        next[link] = "+" + (random.nextInt(20 * slots) * (tick / 10) + 1);
                    }
                    script.add(random.nextInt(20 * slots) * (tick / 10) + 1, next);
                }
                for (int i = 0; i < 5; i++) {
                    if (variant % 2 == 0) {
                        script.run(1 + random.nextInt(2 * slots));
                    } else {
                        script.turn((1 + random.nextInt(30 * slots)) * (tick / 10));
                    }
                }
                script.run(2L * slots + 1);
                lines.addAll(script.stop().lines);
            }
        }
        return lines;
    }

    /** At the limit: an expired timeout frees its place. (For cancelled timeouts see `differs`.) */
    static List<String> limit() throws Exception {
        List<String> lines = new ArrayList<>();
        for (int limit = 1; limit <= 20; limit++) {
            Random random = new Random(limit);
            long tick = 10 * MS;
            Script script = new Script("limit-" + limit, tick, 8, limit, 0);
            for (int round = 0; round < 4; round++) {
                for (int i = 0; i <= limit; i++) {
                    script.add(random.nextInt(200) * MS + 1);
                }
                script.run(1 + random.nextInt(12));
            }
            // The worker has processed the cancellation before the place is needed.
            int last = script.size() - 1;
            for (int id = 0; id < last; id++) {
                if (script.isPending(id)) {
                    script.cancel(id).run(1).add(300 * MS + 1);
                    break;
                }
            }
            lines.addAll(script.run(31).stop().lines);
        }
        return lines;
    }

    /** Stops with timeouts in the queue, in the wheel, due, cancelled and expired; stops twice; and with none. */
    static List<String> stop() throws Exception {
        List<String> lines = new ArrayList<>();
        for (int slots : SIZES) {
            for (int variant = 0; variant < 4; variant++) {
                Random random = new Random(slots * 53L + variant);
                long tick = 10 * MS;
                Script script = new Script("stop-" + slots + "-" + variant, tick, slots);
                int count = variant * 5;
                for (int i = 0; i < count; i++) {
                    script.add(random.nextInt(3 * slots) * tick + 1);
                }
                script.run(random.nextInt(2 * slots));
                for (int i = 0; i < count / 2; i++) {
                    script.add(random.nextInt(3 * slots) * tick + 1);
                    script.cancel(random.nextInt(script.size()));
                }
                if (random.nextBoolean()) {
                    script.stall(random.nextInt(4 * slots) * tick);
                }
                lines.addAll(script.stop().stop().lines);
            }
        }
        return lines;
    }

    /** Random operations. */
    static List<String> random() throws Exception {
        List<String> lines = new ArrayList<>();
        for (int seed = 0; seed < 160; seed++) {
            Random random = new Random(seed);
            int slots = SIZES[seed % SIZES.length];
            long tick = 10 * MS;
            Script script = new Script("random-" + seed, tick, slots);
            for (int step = 0; step < 40; step++) {
                int kind = random.nextInt(10);
                long far = (long) (Math.pow(2, random.nextDouble() * 12) * tick);
                if (kind < 5 || script.size() == 0) {
                    List<String> task = new ArrayList<>();
                    while (random.nextInt(4) == 0) {
                        task.add(random.nextBoolean() && script.size() > 0
                            ? "x" + random.nextInt(script.size())
                            : "+" + (random.nextInt(100) * (tick / 10) + 1));
                    }
                    script.add(far / (tick / 10) * (tick / 10) + 1, task.toArray(String[]::new));
                } else if (kind == 5 || kind == 6) {
                    script.cancel(random.nextInt(script.size()));
                } else if (kind == 7) {
                    script.stall(random.nextInt(30) * (tick / 10));
                } else if (kind == 8) {
                    script.turn(random.nextInt(10 * slots + 20) * (tick / 10));
                } else {
                    script.run(1 + random.nextInt(slots + 2));
                }
            }
            lines.addAll(script.stop().lines);
        }
        return lines;
    }

    /** Timers that have been running for up to a century. */
    static List<String> old() throws Exception {
        List<String> lines = new ArrayList<>();
        for (int slots : SIZES) {
            for (long from : new long[] {(1L << 31) - 3, (1L << 41) - 2}) {
                Random random = new Random(slots + from);
                Script script = new Script("old-" + slots + "-" + from, MS, slots, 0, from);
                script.turn(random.nextInt((int) MS));
                for (long multiple : multiples(slots)) {
                    script.add(script.off(multiple * MS + random.nextInt((int) MS)));
                }
                script.add(Long.MAX_VALUE);
                lines.addAll(script.cancel(3).run(5L * slots + 4).stop().lines);
            }
        }
        return lines;
    }

    /** Valid and invalid settings of a timer, and the resulting size of its wheel. */
    static List<String> build() {
        List<String> lines = new ArrayList<>();
        long[][] all = {
            {MS, 0}, {0, 8}, {0, 0}, {MS, (1 << 30) + 1}, {MS, Integer.MAX_VALUE}, {Long.MAX_VALUE, 1},
            {Long.MAX_VALUE, 512}, {MS, 1 << 16}, {100 * MS, 512}, {3_600_000 * MS, 512}, {MS, 513}, {MS, 511},
            {MS, 1}, {MS, 2}, {MS, 3}, {MS, 4}, {MS, 5}, {MS, 7}, {MS, 9}, {MS, 31}, {MS, 33}, {MS, 100}, {MS, 255},
            {MS, 257}, {MS + 1, 1000}, {123_456_789, 1025},
            // A round of the wheel of slightly more than 146 years.
            {(1L << 62) - 1, 1}, {1L << 62, 1}, {((1L << 62) >> 9), 512},
        };
        for (long[] one : all) {
            String what = "build " + one[0] + " " + one[1] + " = ";
            try {
                HashedWheelTimer timer =
                    new HashedWheelTimer(Thread::new, one[0], TimeUnit.NANOSECONDS, (int) one[1], false);
                lines.add(what + get(timer, "tickDuration") + " " + ((Object[]) get(timer, "wheel")).length);
                timer.stop();
            } catch (IllegalArgumentException | NegativeArraySizeException refused) {
                lines.add(what + "refused");
            } catch (Exception e) {
                throw new AssertionError(e);
            }
        }
        return lines;
    }

    /** Each script shows one difference. The Rust side has a separate test for each. */
    static List<String> differs() throws Exception {
        List<String> lines = new ArrayList<>();
        long tick = 10 * MS;
        lines.addAll(new Script("short-tick", MS / 4, 8).add(600_000).add(1_100_000).run(2).stop().lines);
        // The second is cancelled between the tick of its deadline and the tick at which Netty fires it.
        lines.addAll(new Script("exact-cancel", tick, 8).add(tick).add(tick).run(1).cancel(1).run(1).lines);
        lines.addAll(new Script("exact-stop", tick, 8).add(tick).run(1).stop().lines);
        // The last two exceed the 100 000 that Netty transfers per tick.
        lines.addAll(new Script("backlog", tick, 8).add(tick + 1).fill(99_999, 100 * tick + 1).add(1).add(tick + 2)
            .run(1).run(1).lines);
        // The same, and the worker is late: it processes both ticks at once.
        lines.addAll(new Script("backlog-late", tick, 8).fill(100_000, 100 * tick + 1).add(tick + 2).add(1)
            .turn(2 * tick).lines);
        lines.addAll(new Script("limit-cancel", tick, 8, 1, 0).add(tick + 1).cancel(0).add(tick + 1).run(1)
            .add(tick + 1).run(3).lines);
        lines.addAll(new Script("refused", tick, 8).add(1).stop().add(1).add(1).lines);
        lines.addAll(new Script("stop-within-add", tick, 8).add(tick + 1).stopWithinAdd(tick + 1).lines);
        // Java's delays can be negative.
        lines.addAll(new Script("negative", tick, 8).turn(5 * tick + 1).add(1).add(-3 * tick).add(Long.MIN_VALUE / 2)
            .run(1).lines);
        return lines;
    }

    // --- the real thread ---------------------------------------------------------------------------------------

    /** A normal timer of Netty. Only results that do not depend on the speed of the machine are recorded. */
    static final class Real {
        static final long TICK = 10;
        static final long FAR = 3_600_000;
        final List<String> lines = new ArrayList<>();
        final HashedWheelTimer timer;
        final List<Timeout> timeouts = new ArrayList<>();
        final List<String> ran = new ArrayList<>();
        final CountDownLatch asleep = new CountDownLatch(1);
        int seen;

        Real(String name, int slots) {
            timer = new HashedWheelTimer(Executors.defaultThreadFactory(), TICK, TimeUnit.MILLISECONDS, slots, false);
            lines.add("script " + name + " " + TICK * MS + " " + slots);
        }

        /** `kind` is what the task does. With null it only records that it ran. */
        Real add(long millis, String kind) {
            int id = timeouts.size();
            String what = "+ " + millis + (kind == null ? "" : " " + kind);
            long begin = System.nanoTime();
            try {
                timeouts.add(timer.newTimeout(ignored -> run(id, begin + millis * MS, kind), millis, TimeUnit.MILLISECONDS));
                lines.add(what + " = ok");
            } catch (IllegalStateException stopped) {
                timeouts.add(null);
                lines.add(what + " = stopped");
            }
            return this;
        }

        private void run(int id, long deadline, String kind) {
            if (System.nanoTime() < deadline) {
                throw fatal("Netty is early");
            }
            String how = "";
            if ("stop".equals(kind)) {
                try {
                    timer.stop();
                    how = "stopped";
                } catch (IllegalStateException refused) {
                    how = "refused";
                }
            } else if ("sleep".equals(kind)) {
                asleep.countDown();
                try {
                    Thread.sleep(150);
                    how = "slept";
                } catch (InterruptedException e) {
                    how = "interrupted";
                }
            }
            synchronized (ran) {
                ran.add(id + how);
                ran.notifyAll();
            }
            if ("throw".equals(kind)) {
                throw new RuntimeException("wanted");
            }
        }

        static RuntimeException fatal(String why) {
            System.err.println(why);
            Runtime.getRuntime().halt(1);
            return new RuntimeException(why);
        }

        Real cancel(int id) {
            lines.add("x " + id + " = " + (timeouts.get(id).cancel() ? "y" : "n"));
            return this;
        }

        /** Waits until `count` more tasks have run. */
        Real await(int count) throws Exception {
            synchronized (ran) {
                while (ran.size() < seen + count) {
                    ran.wait();
                }
                lines.add("w " + count + " = " + String.join(" ", ran.subList(seen, seen + count)));
            }
            seen += count;
            return this;
        }

        /** Waits until a task sleeps. */
        Real awaitSleep() throws Exception {
            asleep.await();
            lines.add("z =");
            return this;
        }

        Real stop() {
            TreeSet<Integer> ids = new TreeSet<>();
            timer.stop().forEach(rest -> ids.add(timeouts.indexOf(rest)));
            StringBuilder line = new StringBuilder("! =");
            ids.forEach(id -> line.append(' ').append(id));
            lines.add(line.toString());
            return this;
        }

        static List<String> all() throws Exception {
            List<Callable<Real>> scripts = new ArrayList<>();
            for (int seed = 0; seed < 36; seed++) {
                int number = seed;
                scripts.add(() -> traffic(number));
            }
            scripts.add(() -> new Real("never-started", 8).stop().stop().add(FAR, null));
            scripts.add(() -> new Real("stop-in-task", 8).add(10, "stop").add(60, null).add(FAR, null).await(2).stop());
            scripts.add(() -> new Real("throw", 8).add(10, "throw").add(60, null).add(110, "throw").add(160, null)
                .await(4).stop());
            scripts.add(() -> new Real("busy", 8).add(10, "sleep").add(FAR, null).awaitSleep().stop().await(1));
            ExecutorService threads = Executors.newCachedThreadPool();
            List<String> lines = new ArrayList<>();
            for (Future<Real> script : threads.invokeAll(scripts)) {
                lines.addAll(script.get().lines);
            }
            threads.shutdown();
            return lines;
        }

        /** Some timeouts soon, far enough apart for a certain order; some far away; some of these are cancelled. */
        static Real traffic(int seed) throws Exception {
            Random random = new Random(seed);
            Real real = new Real("traffic-" + seed, 1 << seed % 7);
            List<Long> delays = new ArrayList<>();
            int soon = 2 + random.nextInt(4);
            for (long i = 0; i < soon; i++) {
                delays.add(i * 70 + 5);
            }
            int far = 1 + random.nextInt(5);
            for (int i = 0; i < far; i++) {
                delays.add(FAR + random.nextInt(1000));
            }
            Collections.shuffle(delays, random);
            for (long delay : delays) {
                real.add(delay, null);
            }
            for (int id = 0; id < delays.size(); id++) {
                if (delays.get(id) >= FAR && random.nextBoolean()) {
                    real.cancel(id);
                }
            }
            real.await(1).add(FAR, null).await(soon - 1);
            for (int i = 0; i < 3; i++) {
                real.cancel(random.nextInt(delays.size()));
            }
            return real.stop().stop().add(5, null);
        }
    }
}
