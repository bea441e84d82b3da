package offloaderd.pulsar;

import java.io.IOException;
import java.time.Duration;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.IntStream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * How the daemon is reached and how patient to be. A setting is named {@code managedLedgerOffloadExtraConfigoffloaderdNAME}
 * in broker.conf, {@code offloaderdNAME} in the extra configuration of a namespace's policies, and
 * {@code -Doffloaderd.NAME} for the broker's JVM. A file that is not named is empty. Times are whole seconds.
 *
 * <p>A broker hands the same extra configuration to every driver: what has not our prefix is another's, except for our
 * names alone, as they were before there was a prefix. What has it is ours, so a name that is none is refused.
 *
 * <p>Policies are written by whoever administers a namespace, and the broker reads files and sends its token for it: so
 * they set patience and sizes alone, unless the broker says {@code NamespaceAddresses=true}, and of these no more than the
 * broker has: who waits longer holds places of pushes and memory that others need. A value that is the broker's own
 * changes nothing: since 4.2 a broker gives its extra configuration to every namespace.
 *
 * <p>What is wrong in itself is refused, as Pulsar refuses the settings of its own drivers. Whether files can be read and
 * hosts be found is no matter of these: that may be mended while the broker runs ({@link Daemons#inspect}).
 */
record Settings(
        String address,
        boolean tls,
        String trustCertsFile,
        String certFile,
        String keyFile,
        String tokenFile,
        Duration callTimeout,
        Duration readTimeout,
        Duration offloadTimeout,
        int readAheadBytes,
        int readMemoryBytes,
        boolean directReads) {

    private static final Logger LOG = LoggerFactory.getLogger(Settings.class);
    private static final String PREFIX = "offloaderd";
    private static final String PROPERTY = PREFIX + ".";
    /** Where libraries that are renamed within the driver look for theirs. */
    private static final String SHADED = PROPERTY + "shaded.";
    private static final int TYPOS_MAX = 3;
    private static final int TOLD_MAX = 1_000;
    /** What the log says already: namespaces name what they like. */
    static final Set<String> TOLD = ConcurrentHashMap.newKeySet();
    private static final String ANY_OF_NAMESPACE = "NamespaceAddresses";
    private static final String READ_MEMORY = "ReadMemoryBytes";
    private static final String DIRECT_READS = "DirectReads";
    /** What namespaces cannot say even if they may name daemons: it holds for all of them together. */
    private static final Set<String> ALWAYS_OF_BROKER = Set.of(ANY_OF_NAMESPACE, READ_MEMORY, DIRECT_READS);
    private static final Map<String, String> OF_BROKER = Map.of(
            "Address", "127.0.0.1:7650",
            "Tls", "false",
            "TlsTrustCertsFile", "",
            "TlsCertFile", "",
            "TlsKeyFile", "",
            "TokenFile", "",
            READ_MEMORY, "134217728",
            DIRECT_READS, "false",
            ANY_OF_NAMESPACE, "false");
    private static final Map<String, String> OF_NAMESPACE = Map.of(
            "CallTimeoutSeconds", "30",
            "ReadTimeoutSeconds", "60",
            "OffloadTimeoutSeconds", "120",
            "ReadAheadBytes", "8388608");

    /**
     * Reads what a namespace may say, in place of what the broker was configured with, in place of what its JVM was, in
     * place of what is so by default.
     *
     * @throws IOException that names all mistakes at once
     */
    static Settings read(Map<String, String> broker, Map<String, String> namespace) throws IOException {
        Set<String> mistakes = new TreeSet<>();
        Map<String, String> values = new TreeMap<>(OF_BROKER);
        values.putAll(OF_NAMESPACE);
        values.putAll(own(ofJvm(), values.keySet(), mistakes));
        values.putAll(own(broker, values.keySet(), mistakes));
        boolean any = Boolean.parseBoolean(values.get(ANY_OF_NAMESPACE));
        own(namespace, values.keySet(), mistakes).forEach((name, value) -> {
            if (OF_NAMESPACE.containsKey(name)) {
                values.put(name, bounded(name, value, values.get(name)));
            } else if (any && !ALWAYS_OF_BROKER.contains(name)) {
                values.put(name, value);
            } else if (!value.equals(values.get(name))) {
                mistakes.add(name + " is the broker's to say, not a namespace's: set it in broker.conf or by -D" + PROPERTY
                        + name + (any || ALWAYS_OF_BROKER.contains(name)
                                ? "" : ", or let namespaces set it by -D" + PROPERTY + ANY_OF_NAMESPACE + "=true"));
            }
        });
        Settings settings = new Settings(
                values.get("Address"),
                Boolean.parseBoolean(values.get("Tls")),
                values.get("TlsTrustCertsFile"),
                values.get("TlsCertFile"),
                values.get("TlsKeyFile"),
                values.get("TokenFile"),
                Duration.ofSeconds(number(values, "CallTimeoutSeconds", 1, 3600, mistakes)),
                Duration.ofSeconds(number(values, "ReadTimeoutSeconds", 1, 3600, mistakes)),
                Duration.ofSeconds(number(values, "OffloadTimeoutSeconds", 1, 7 * 86400, mistakes)),
                number(values, "ReadAheadBytes", 0, 256 << 20, mistakes),
                number(values, READ_MEMORY, 0, Integer.MAX_VALUE, mistakes),
                Boolean.parseBoolean(values.get(DIRECT_READS)));
        if (!settings.address.matches("\\S+:\\d+")) {
            mistakes.add("Address is '" + settings.address + "', not HOST:PORT");
        }
        if (settings.certFile.isEmpty() != settings.keyFile.isEmpty()) {
            mistakes.add("TlsCertFile and TlsKeyFile go together");
        }
        if (!settings.tls && !(settings.trustCertsFile + settings.certFile).isEmpty()) {
            mistakes.add("certificates without Tls=true");
        }
        if (!settings.tls && !settings.tokenFile.isEmpty()) {
            mistakes.add("TokenFile without Tls=true: a token is sent over TLS only, or anybody on the way could use it");
        }
        if (!mistakes.isEmpty()) {
            throw new IOException("offloaderd's driver cannot work as it is configured: " + String.join("; ", mistakes)
                    + " (settings are " + PREFIX + String.join(", " + PREFIX, values.keySet()) + ")");
        }
        return settings;
    }

    /** Returns what the JVM was started with. */
    private static Map<String, String> ofJvm() {
        Map<String, String> said = new TreeMap<>();
        for (String name : System.getProperties().stringPropertyNames()) {
            if (name.startsWith(PROPERTY) && !name.startsWith(SHADED)) {
                said.put(name, System.getProperty(name));
            }
        }
        return said;
    }

    /** Returns what is said to this driver, by the names alone; notes names that can only be meant for it and are none. */
    private static Map<String, String> own(Map<String, String> said, Set<String> known, Set<String> mistakes) {
        Map<String, String> bare = new TreeMap<>();
        Map<String, String> prefixed = new TreeMap<>();
        Set<String> foreign = new TreeSet<>();
        said.forEach((full, value) -> {
            boolean ours = full.regionMatches(true, 0, PREFIX, 0, PREFIX.length());
            String name = ours ? full.substring(PREFIX.length()).replaceFirst("^\\.", "") : full;
            if (known.contains(name)) {
                (ours ? prefixed : bare).put(name, value.trim());
            } else {
                String meant = closest(name, known);
                (ours ? mistakes : foreign).add((ours ? "there is no setting " : "") + full
                        + (meant.isEmpty() ? "" : ", did you mean " + PREFIX + meant + "?"));
            }
        });
        if (!foreign.isEmpty()) {
            tell("Settings of other drivers are ignored: " + String.join("; ", foreign) + " (ours begin with " + PREFIX + ")");
        }
        bare.putAll(prefixed);
        return bare;
    }

    /** Returns the one of some names that somebody may have meant, empty for none. */
    private static String closest(String name, Set<String> known) {
        String found = "";
        int least = TYPOS_MAX + 1;
        for (String one : known) {
            int typos = typos(name.toLowerCase(Locale.ROOT), one.toLowerCase(Locale.ROOT));
            if (typos < least) {
                least = typos;
                found = one;
            }
        }
        return found;
    }

    /** Counts the characters to be added, left out or changed to make one word of another. */
    private static int typos(String from, String to) {
        int[] row = IntStream.rangeClosed(0, to.length()).toArray();
        for (int i = 1; i <= from.length(); i++) {
            int diagonal = row[0];
            row[0] = i;
            for (int j = 1; j <= to.length(); j++) {
                int changed = diagonal + (from.charAt(i - 1) == to.charAt(j - 1) ? 0 : 1);
                diagonal = row[j];
                row[j] = Math.min(changed, 1 + Math.min(row[j], row[j - 1]));
            }
        }
        return row[to.length()];
    }

    /** Returns what counts of a namespace's number: no more than the broker's. */
    private static String bounded(String name, String said, String most) {
        try {
            if (Integer.parseInt(said) <= Integer.parseInt(most)) {
                return said;
            }
        } catch (NumberFormatException wrong) {
            return said; // refused later, with all other mistakes
        }
        tell(PREFIX + name + " is " + said + " in a namespace's policies, more than the broker's " + most + ", which counts:"
                + " set more for the broker, in broker.conf or by -D" + PROPERTY + name + ", or less for the namespace");
        return most;
    }

    private static void tell(String message) {
        if (TOLD.size() < TOLD_MAX && TOLD.add(message)) {
            LOG.warn("{}", message.replaceAll("\\p{Cntrl}", "?"));
        }
    }

    /** Returns where the daemon is and what it is shown, as a person set it. */
    String shown() {
        StringBuilder shown = new StringBuilder("Address=" + address + ", Tls=" + tls);
        Map<String, String> files = new TreeMap<>(Map.of(
                "TlsTrustCertsFile", trustCertsFile, "TlsCertFile", certFile, "TlsKeyFile", keyFile, "TokenFile", tokenFile));
        files.forEach((name, file) -> shown.append(file.isEmpty() ? "" : ", " + name + "=" + file));
        return shown.toString();
    }

    private static int number(Map<String, String> values, String name, int least, int most, Set<String> mistakes) {
        try {
            int number = Integer.parseInt(values.get(name));
            if (least <= number && number <= most) {
                return number;
            }
        } catch (NumberFormatException ignored) {
            // told below
        }
        mistakes.add(name + " is '" + values.get(name) + "', not a number from " + least + " to " + most);
        return least;
    }
}
