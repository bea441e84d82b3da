package offloaderd.pulsar;

/** What read handles hold of a broker's heap, as {@code offloaderd:type=ReadMemory} in JMX. */
public interface ReadMemoryMXBean {
    /** Returns the bytes that are held now by all handles. */
    long getUsedBytes();

    /** Returns above how many bytes nothing more is read ahead. */
    long getLimitBytes();

    /** Returns how often something was not read ahead for want of room. */
    long getRefusals();
}
