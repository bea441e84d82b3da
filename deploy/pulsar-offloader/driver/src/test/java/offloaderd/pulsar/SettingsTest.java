package offloaderd.pulsar;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import org.junit.Test;

/** Which settings are this driver's, and what it makes of them. */
public class SettingsTest {
    private static void refused(Map<String, String> broker, String... words) {
        IOException error = assertThrows(IOException.class, () -> Settings.read(broker, Map.of()));
        for (String word : words) {
            assertTrue(error.getMessage(), error.getMessage().contains(word));
        }
    }

    @Test
    public void allMistakesOfSettingsAreToldAtOnce() {
        refused(Map.of(
                "Address", "nowhere", "ReadTimeoutSeconds", "soon", "offloaderdAdress", "x", "TlsCertFile", "/no/key"),
                "nowhere", "soon", "offloaderdAdress, did you mean offloaderdAddress?", "go together");
    }

    @Test
    public void settingsOfOtherDriversAreNothingToThisOne() throws Exception {
        Map<String, String> merged = Map.of("gcsBlobTier", "cold", "Adress", "x", "offloaderdCallTimeoutSeconds", "7");
        assertEquals(7, Settings.read(merged, merged).callTimeout().toSeconds());
    }

    @Test
    public void ownNamesMayBeWrittenInThreeWays() throws Exception {
        for (String name : List.of("Address", "offloaderdAddress", "Offloaderd.Address")) {
            assertEquals("one:1", Settings.read(Map.of(name, " one:1 "), Map.of()).address());
        }
        assertEquals("two:2", Settings.read(Map.of("Address", "one:1", "offloaderdAddress", "two:2"), Map.of()).address());
    }

    @Test
    public void aNameThatTheJvmWasGivenAndThatIsNoneIsToldAsWell() throws Exception {
        System.setProperty("offloaderd.CallTimeoutSecond", "5");
        System.setProperty("offloaderd.shaded.grpc.whatever", "5");
        try {
            refused(Map.of(), "offloaderd.CallTimeoutSecond, did you mean offloaderdCallTimeoutSeconds?");
        } finally {
            System.clearProperty("offloaderd.CallTimeoutSecond");
        }
        assertEquals(30, Settings.read(Map.of(), Map.of()).callTimeout().toSeconds());
    }

    @Test
    public void aNamespaceThatIsGivenTheBrokersOwnValuesChangesNothing() throws Exception {
        Map<String, String> broker = Map.of("offloaderdTls", "true", "offloaderdAddress", "broker:1");
        assertEquals("broker:1", Settings.read(broker, broker).address()); // as Pulsar 4.2 merges them
        assertThrows(IOException.class, () -> Settings.read(broker, Map.of("offloaderdAddress", "evil:2")));
    }

    @Test
    public void aNamespaceTakesNoMoreThanTheBrokerHasAndIsToldOnce() throws Exception {
        Map<String, String> broker = Map.of("OffloadTimeoutSeconds", "300", "ReadAheadBytes", "1000");
        Map<String, String> greedy = Map.of(
                "OffloadTimeoutSeconds", "604800", "ReadTimeoutSeconds", "61", "CallTimeoutSeconds", "31",
                "offloaderdReadAheadBytes", "1001");
        Settings.TOLD.clear();
        for (int i = 0; i < 2; i++) {
            Settings settings = Settings.read(broker, greedy);
            assertEquals(300, settings.offloadTimeout().toSeconds());
            assertEquals(60, settings.readTimeout().toSeconds());
            assertEquals(30, settings.callTimeout().toSeconds());
            assertEquals(1000, settings.readAheadBytes());
        }
        assertEquals(4, Settings.TOLD.size());
        assertTrue(Settings.TOLD.toString(), Settings.TOLD.contains("offloaderdOffloadTimeoutSeconds is 604800 in a"
                + " namespace's policies, more than the broker's 300, which counts: set more for the broker, in broker.conf"
                + " or by -Doffloaderd.OffloadTimeoutSeconds, or less for the namespace"));
        assertEquals(9, Settings.read(broker, Map.of("OffloadTimeoutSeconds", "9")).offloadTimeout().toSeconds());
        assertThrows(IOException.class, () -> Settings.read(broker, Map.of("OffloadTimeoutSeconds", "ages")));
    }

    @Test
    public void anOffloadWaitsForMinutesAtMostUnlessToldElse() throws Exception {
        assertEquals(120, Settings.read(Map.of(), Map.of()).offloadTimeout().toSeconds());
    }
}
