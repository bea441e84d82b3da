package offloaderd.pulsar;

import java.io.File;
import java.io.IOException;
import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/**
 * How the daemon is reached and how patient to be. A setting is named {@code managedLedgerOffloadExtraConfigNAME} in
 * broker.conf, {@code NAME} in the extra configuration of a namespace's policies, and {@code -Doffloaderd.NAME} for the
 * broker's JVM. A file that is not named is empty. Times are whole seconds.
 *
 * <p>Policies are written by whoever administers a namespace, and the broker reads files and sends its token for it: so
 * they set patience and sizes alone, unless the broker says {@code NamespaceAddresses=true}.
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
        int readAheadBytes) {

    private static final String PROPERTY = "offloaderd.";
    private static final String ANY_OF_NAMESPACE = "NamespaceAddresses";
    private static final Map<String, String> OF_BROKER = Map.of(
            "Address", "127.0.0.1:7650",
            "Tls", "false",
            "TlsTrustCertsFile", "",
            "TlsCertFile", "",
            "TlsKeyFile", "",
            "TokenFile", "",
            ANY_OF_NAMESPACE, "false");
    private static final Map<String, String> OF_NAMESPACE = Map.of(
            "CallTimeoutSeconds", "30",
            "ReadTimeoutSeconds", "60",
            "OffloadTimeoutSeconds", "3600",
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
        values.replaceAll((name, value) -> System.getProperty(PROPERTY + name, value));
        broker.forEach((name, value) -> {
            if (values.replace(name, value.trim()) == null) {
                mistakes.add("there is no setting " + name);
            }
        });
        boolean any = Boolean.parseBoolean(values.get(ANY_OF_NAMESPACE));
        namespace.forEach((name, value) -> {
            if (!values.containsKey(name)) {
                mistakes.add("there is no setting " + name);
            } else if (OF_NAMESPACE.containsKey(name) || (any && !name.equals(ANY_OF_NAMESPACE))) {
                values.put(name, value.trim());
            } else {
                mistakes.add(name + " is the broker's to say, not a namespace's: set it in broker.conf or by -D" + PROPERTY
                        + name + (any ? "" : ", or let namespaces set it by -D" + PROPERTY + ANY_OF_NAMESPACE + "=true"));
            }
        });
        Settings settings = new Settings(
                values.get("Address"),
                Boolean.parseBoolean(values.get("Tls")),
                readable(values, "TlsTrustCertsFile", mistakes),
                readable(values, "TlsCertFile", mistakes),
                readable(values, "TlsKeyFile", mistakes),
                readable(values, "TokenFile", mistakes),
                Duration.ofSeconds(number(values, "CallTimeoutSeconds", 1, 3600, mistakes)),
                Duration.ofSeconds(number(values, "ReadTimeoutSeconds", 1, 3600, mistakes)),
                Duration.ofSeconds(number(values, "OffloadTimeoutSeconds", 1, 7 * 86400, mistakes)),
                number(values, "ReadAheadBytes", 0, 256 << 20, mistakes));
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
                    + " (settings are " + String.join(", ", values.keySet()) + ")");
        }
        return settings;
    }

    private static String readable(Map<String, String> values, String name, Set<String> mistakes) {
        String file = values.get(name);
        if (!file.isEmpty() && !new File(file).canRead()) {
            mistakes.add(name + " is '" + file + "', which cannot be read");
        }
        return file;
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
