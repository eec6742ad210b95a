/**
 * The generator splitmix64. The Rust side uses the same one, so that all timers get the same input.
 */
final class SplitMix {
    private long state;

    SplitMix(long seed) {
        state = seed;
    }

    private long next() {
        state += 0x9E3779B97F4A7C15L;
        long z = state;
        z = (z ^ z >>> 30) * 0xBF58476D1CE4E5B9L;
        z = (z ^ z >>> 27) * 0x94D049BB133111EBL;
        return z ^ z >>> 31;
    }

    int below(int n) {
        return (int) ((next() >>> 33) % n);
    }

    /**
     * Returns `count` delays in nanoseconds, uniform between `from` and `to` seconds, rounded to
     * microseconds.
     */
    long[] delays(int count, double from, double to) {
        long base = Math.round(from * 1e6);
        int span = (int) Math.round((to - from) * 1e6);
        long[] delays = new long[count];
        for (int i = 0; i < count; i++) {
            delays[i] = (base + below(span)) * 1000;
        }
        return delays;
    }

    int[] indexes(int count, int n) {
        int[] indexes = new int[count];
        for (int i = 0; i < count; i++) {
            indexes[i] = below(n);
        }
        return indexes;
    }

    <T> void shuffle(T[] items) {
        for (int i = items.length - 1; i > 0; i--) {
            int other = below(i + 1);
            T item = items[i];
            items[i] = items[other];
            items[other] = item;
        }
    }
}
