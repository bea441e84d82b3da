package offloaderd.pulsar;

import com.google.protobuf.ByteString;
import io.grpc.Status;
import io.grpc.StatusException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import offloaderd.v1.Read.ReadResponse;

/**
 * The entries of an answer. A daemon sends them as they lie in the bucket, each behind its length and id; one of an older
 * version, or for what does not come from there, sends payloads. No payload is copied here.
 */
final class Frames {
    private static final int HEAD_BYTES = Integer.BYTES + Long.BYTES;

    private Frames() {}

    /** Returns the payloads; throws INTERNAL for lengths, ids or a number that are not right. */
    static List<ByteString> payloads(ReadResponse answer) throws StatusException {
        ByteString frames = answer.getFrames();
        int count = answer.getEntries();
        if (frames.isEmpty() && count == 0) {
            return answer.getBatch().getPayloadsList();
        }
        List<ByteString> payloads = payloads(frames, answer.getBatch().getFirstEntryId(), count);
        long bytes = (long) HEAD_BYTES * payloads.size();
        for (ByteString payload : payloads) {
            bytes += payload.size();
        }
        if (bytes != frames.size()) {
            throw wrong("more than " + count + " entries came in an answer");
        }
        return payloads;
    }

    /** Returns the payloads of so many entries that follow each other from the first byte on; throws INTERNAL. */
    static List<ByteString> payloads(ByteString frames, long first, int count) throws StatusException {
        ByteBuffer heads = frames.asReadOnlyByteBuffer().slice(); // whose byte 0 is that of the frames
        List<ByteString> payloads = new ArrayList<>(Math.min(Math.max(count, 0), frames.size() / HEAD_BYTES));
        int at = 0;
        while (payloads.size() < count) {
            long expected = first + payloads.size();
            int left = frames.size() - at - HEAD_BYTES;
            if (left < 0 || heads.getLong(at + Integer.BYTES) != expected) {
                throw wrong("entry " + expected + " of " + count + " is not at byte " + at + " of their frames");
            }
            int length = heads.getInt(at);
            if (length < 0 || length > left) {
                throw wrong("entry " + expected + " has " + length + " bytes, of which there are " + left);
            }
            at += HEAD_BYTES;
            payloads.add(frames.substring(at, at + length));
            at += length;
        }
        return payloads;
    }

    static StatusException wrong(String what) {
        return Status.INTERNAL.withDescription(what).asException();
    }
}
