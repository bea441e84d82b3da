package offloaderd.pulsar;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertTrue;

import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.protobuf.ProtoUtils;
import java.util.Map;
import java.util.concurrent.CompletionException;
import offloaderd.v1.Common.ErrorDetail;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.junit.Test;

/** What a broker makes of a daemon's answers: a NonRecoverableLedgerException it may skip for good. */
public class FailuresTest {
    private static Throwable answer(Status.Code code, String reason) {
        Metadata trailers = new Metadata();
        if (!reason.isEmpty()) {
            trailers.put(
                    Metadata.Key.of("offloaderd-error-bin",
                            ProtoUtils.metadataMarshaller(ErrorDetail.getDefaultInstance())),
                    ErrorDetail.newBuilder().setReason(reason).setHint("do this").build());
        }
        return new CompletionException(code.toStatus().withDescription("that").asRuntimeException(trailers));
    }

    @Test
    public void onlyWhatIsOnRecordAsDeletedIsSkipped() {
        ManagedLedgerException gone = Failures.of(answer(Status.Code.NOT_FOUND, "ENTRIES_DELETED"), "what");
        assertSame(ManagedLedgerException.LedgerNotExistException.class, gone.getClass());
        assertTrue(gone instanceof ManagedLedgerException.NonRecoverableLedgerException);
    }

    @Test
    public void whatNobodyCanTellIsNeverSkipped() {
        Map<String, Status.Code> answers = Map.of(
                "MAP_UNKNOWN", Status.Code.FAILED_PRECONDITION,
                "TOPIC_UNKNOWN", Status.Code.FAILED_PRECONDITION,
                "ENTRIES_MISSING", Status.Code.FAILED_PRECONDITION,
                "BUCKET_MISSING", Status.Code.FAILED_PRECONDITION,
                "ENTRIES_LOST", Status.Code.DATA_LOSS,
                "CORRUPT_DATA", Status.Code.DATA_LOSS,
                "NOT_FOUND", Status.Code.NOT_FOUND, // of older daemons, as the next
                "TOPIC_NOT_FOUND", Status.Code.NOT_FOUND,
                "", Status.Code.NOT_FOUND);
        answers.forEach((reason, code) -> {
            ManagedLedgerException error = Failures.of(answer(code, reason), "what");
            assertFalse(reason, error instanceof ManagedLedgerException.NonRecoverableLedgerException);
            assertEquals(reason.isEmpty() ? "what: that" : "what: that (do this)", error.getMessage());
        });
    }
}
