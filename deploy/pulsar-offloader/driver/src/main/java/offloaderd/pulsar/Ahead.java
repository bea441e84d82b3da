package offloaderd.pulsar;

import com.google.protobuf.ByteString;
import java.util.ArrayDeque;
import java.util.List;

/** The answers that a lane has got, and what of them no read has taken. An answer goes as a whole, with its last entry. */
final class Ahead {
    private record Answer(List<ByteString> payloads, long bytes) {}

    private final ReadMemory memory;
    private final ArrayDeque<Answer> answers = new ArrayDeque<>();
    private int passed; // entries of the first answer
    private int entries;
    private long bytes;

    Ahead(ReadMemory memory) {
        this.memory = memory;
    }

    /** Adds an answer, with the bytes of the heap that it holds. */
    void add(List<ByteString> payloads, long heapBytes) {
        if (payloads.isEmpty()) {
            return;
        }
        answers.add(new Answer(payloads, heapBytes));
        memory.need(heapBytes);
        bytes += heapBytes;
        entries += payloads.size();
    }

    /** Returns the first entry. */
    ByteString first() {
        return answers.element().payloads.get(passed);
    }

    /** Leaves the first entry behind. */
    void pass() {
        Answer answer = answers.element();
        passed++;
        entries--;
        if (passed == answer.payloads.size()) {
            answers.remove();
            passed = 0;
            bytes -= answer.bytes;
            memory.giveBack(answer.bytes);
        }
    }

    void clear() {
        answers.clear();
        passed = 0;
        entries = 0;
        memory.giveBack(bytes);
        bytes = 0;
    }

    /** Returns how many entries nobody has taken. */
    int entries() {
        return entries;
    }

    /** Returns how many answers nobody has taken an entry of. */
    int untouched() {
        return answers.size() - (passed > 0 ? 1 : 0);
    }

    /** Returns the bytes of the heap that are held, of answers of which entries were taken as well. */
    long bytes() {
        return bytes;
    }
}
