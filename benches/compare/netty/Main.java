import io.netty.util.HashedWheelTimer;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;

/**
 * Netty's side of benches/compare. It reads one command per line from stdin and writes one line of
 * JSON per command to stdout. It writes nothing else to stdout.
 */
public final class Main {
    public static void main(String[] args) throws IOException {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

        WarmUp.all();
        Machine.collect();
        answers.println(ready());
        answers.flush();
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            if (line.isBlank()) {
                continue;
            }
            answers.println(answer(line));
            answers.flush();
        }
        System.exit(0);
    }

    private static String answer(String line) {
        try {
            String[] words = line.trim().split("\\s+");
            String json = Workloads.run(words[0], new Keys(words));
            // The next command starts with an empty young generation. No collection happens while
            // the child is idle.
            Machine.collect();
            return json;
        } catch (Throwable t) {
            t.printStackTrace();
            return "{\"error\":" + quoted(t.toString()) + "}";
        }
    }

    private static String ready() throws IOException {
        Properties pom = new Properties();
        try (InputStream in = HashedWheelTimer.class.getResourceAsStream("/META-INF/maven/io.netty/netty-common/pom.properties")) {
            if (in != null) {
                pom.load(in);
            }
        }
        String netty = pom.getProperty("version", "(unknown version)");
        String version = netty.replace(".Final", "") + " (" + Machine.collector() + ") on Java " + System.getProperty("java.version");
        return "{\"ready\":true,\"name\":\"Netty\",\"version\":" + quoted(version) + "}";
    }

    private static String quoted(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                json.append('\\').append(c);
            } else if (c < ' ') {
                json.append(String.format(Locale.ROOT, "\\u%04x", (int) c));
            } else {
                json.append(c);
            }
        }
        return json.append('"').toString();
    }

    /** The arguments after the name of the workload: `count=1000000 seed=7`. */
    static final class Keys {
        private final Map<String, String> values = new HashMap<>();

        Keys(String[] words) {
            for (int i = 1; i < words.length; i++) {
                int at = words[i].indexOf('=');
                if (at < 0) {
                    throw new IllegalArgumentException("expected key=value, found: " + words[i]);
                }
                values.put(words[i].substring(0, at), words[i].substring(at + 1));
            }
        }

        double number(String key) {
            if (!values.containsKey(key)) {
                throw new IllegalArgumentException("the command has no argument " + key + "=");
            }
            double number = Double.parseDouble(values.get(key));
            if (!(number > 0 && number <= Integer.MAX_VALUE)) {
                throw new IllegalArgumentException(key + " is out of range: " + values.get(key));
            }
            return number;
        }

        int count(String key) {
            return (int) number(key);
        }

        int count(String key, int defaultValue) {
            return values.containsKey(key) ? count(key) : defaultValue;
        }

        long seed() {
            return Long.parseUnsignedLong(values.getOrDefault("seed", "1"));
        }
    }
}
