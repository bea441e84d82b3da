/*
 * Loops over entries, compiled: those that a profile of the daemon and of a direct read shows (docs/speed.md).
 *
 * Each function answers for sound data only. For all other it returns None, and the caller's loop in Python says what
 * is wrong, and where. So the rules are those of the callers: `offloaderd/core/entries.py` and
 * `offloaderd/bookkeeper/wire`; tests compare both on sound and on damaged data.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* 3.11: one wheel for it and all later versions */
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define FRAME_HEAD_BYTES 12  /* payload length, entry id (FORMAT.md, section 1) */
#define STORED_HEAD_BYTES 32 /* ledger, entry, LAC, length (WIRE.md, section 5) */
#define DIGEST_BYTES 4       /* of CRC32C */
#define SIZE_BYTES 4         /* before each entry of an answer to a batch read (WIRE.md, section 2) */
#define INTERFACE 1          /* goes up when a function changes; offloaderd/core/native.py wants this one */

static uint32_t read_u32(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static int64_t read_i64(const unsigned char *at)
{
    return (int64_t)((uint64_t)read_u32(at) << 32 | read_u32(at + 4));
}

/*
 * CRC-32C by the processor's instruction, which x86-64 has since 2008, and almost all 64-bit ARM. By a table it would
 * cost more than google-crc32c and the loop in Python do, so a processor without it has the check in Python. It is
 * written as assembler: compilers differ in what they want to be told before they offer it.
 */

#if defined(__x86_64__)
#include <cpuid.h>
#define CRC_OF_WORD "crc32q %1, %0"
#define CRC_OF_BYTE "crc32b %1, %0"
#elif defined(__aarch64__) && !defined(__AARCH64EB__) && (defined(__linux__) || defined(__APPLE__))
#define CRC_OF_WORD ".arch_extension crc\n\tcrc32cx %w0, %w0, %x1"
#define CRC_OF_BYTE ".arch_extension crc\n\tcrc32cb %w0, %w0, %w1"
#ifdef __linux__
#include <sys/auxv.h>
#endif
#else
#define CRC_OF_WORD ""
#define CRC_OF_BYTE ""
#endif

static int has_crc; /* set when the module is loaded */

static int processor_has_crc(void)
{
#if defined(__x86_64__)
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && ecx & bit_SSE4_2;
#elif defined(__aarch64__) && !defined(__AARCH64EB__) && defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
    return 1;
#else
    return 0;
#endif
}

static uint32_t extend_crc(uint32_t crc, const unsigned char *data, Py_ssize_t size)
{
    uint64_t wide = crc, word;
    for (; size >= 8; size -= 8, data += 8) {
        memcpy(&word, data, 8);
        __asm__(CRC_OF_WORD : "+r"(wide) : "r"(word));
    }
    for (; size > 0; size--, data++)
        __asm__(CRC_OF_BYTE : "+r"(wide) : "r"(*data));
    return (uint32_t)wide;
}

/* What is out of the range of the arguments is that of no entry; other types are a fault of the caller. */
static PyObject *refuse_arguments(void)
{
    if (!PyErr_ExceptionMatches(PyExc_OverflowError))
        return NULL;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* The entries of a block. */

PyDoc_STRVAR(
    framed_payloads_doc,
    "framed_payloads(data, start, end, first_entry_id, count)\n--\n\n"
    "Return the payloads of exactly `count` entries, whose frames are `data[start:end]`; None if they are not that.");

static PyObject *framed_payloads(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *data;
    Py_ssize_t start, end, count;
    long long first_entry_id;
    if (!PyArg_ParseTuple(args, "SnnLn", &data, &start, &end, &first_entry_id, &count))
        return refuse_arguments();
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(data, &bytes, &size) < 0)
        return NULL;
    if (start < 0 || start > end || end > size || count < 0 || count > (end - start) / FRAME_HEAD_BYTES ||
        first_entry_id > INT64_MAX - count)
        Py_RETURN_NONE;
    PyObject *payloads = PyList_New(count);
    if (payloads == NULL)
        return NULL;
    for (Py_ssize_t number = 0; number < count; number++) {
        const unsigned char *head = (const unsigned char *)bytes + start;
        if (end - start < FRAME_HEAD_BYTES)
            goto unsound;
        const uint32_t length = read_u32(head);
        start += FRAME_HEAD_BYTES;
        if (length > INT32_MAX || (Py_ssize_t)length > end - start || read_i64(head + 4) != first_entry_id + number)
            goto unsound;
        PyObject *payload = PyBytes_FromStringAndSize(bytes + start, length);
        if (payload == NULL) {
            Py_DECREF(payloads);
            return NULL;
        }
        PyList_SetItem(payloads, number, payload); /* takes the reference */
        start += length;
    }
    if (start == end)
        return payloads;
unsound:
    Py_DECREF(payloads);
    Py_RETURN_NONE;
}

/* The answer of a bookie to a batch read. */

PyDoc_STRVAR(
    batch_entries_doc,
    "batch_entries(message, start)\n--\n\n"
    "Return the stored entries of a batch, which lie from `message[start]` to its end, each behind its size; None if\n"
    "they do not, or there is none.");

static PyObject *batch_entries(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *message;
    Py_ssize_t start, size;
    char *bytes;
    if (!PyArg_ParseTuple(args, "Sn", &message, &start))
        return refuse_arguments();
    if (PyBytes_AsStringAndSize(message, &bytes, &size) < 0)
        return NULL;
    if (start < 0 || start >= size)
        Py_RETURN_NONE;
    PyObject *entries = PyList_New(0);
    if (entries == NULL)
        return NULL;
    while (start < size) {
        if (size - start < SIZE_BYTES)
            goto unsound;
        const uint32_t length = read_u32((const unsigned char *)bytes + start);
        start += SIZE_BYTES;
        if (length < STORED_HEAD_BYTES || length > INT32_MAX || (Py_ssize_t)length > size - start)
            goto unsound;
        PyObject *entry = PyBytes_FromStringAndSize(bytes + start, length);
        if (entry == NULL || PyList_Append(entries, entry) < 0) {
            Py_XDECREF(entry);
            Py_DECREF(entries);
            return NULL;
        }
        Py_DECREF(entry);
        start += length;
    }
    return entries;
unsound:
    Py_DECREF(entries);
    Py_RETURN_NONE;
}

/* Entries as bookies store them, with CRC32C. */

PyDoc_STRVAR(
    stored_payloads_doc,
    "stored_payloads(entries, ledger_id, first_entry_id)\n--\n\n"
    "Return the payloads of a list of stored entries, their lengths in the ledger, and the greatest LAC, -1 without\n"
    "any; None if one of them is damaged, or is not the entry that it should be.");

static PyObject *stored_payloads(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *entries;
    long long ledger_id, first_entry_id, lac_max = -1;
    if (!PyArg_ParseTuple(args, "O!LL", &PyList_Type, &entries, &ledger_id, &first_entry_id))
        return refuse_arguments();
    const Py_ssize_t count = PyList_Size(entries);
    if (!has_crc || first_entry_id > INT64_MAX - count)
        Py_RETURN_NONE;
    PyObject *payloads = PyList_New(count), *lengths = PyList_New(count);
    if (payloads == NULL || lengths == NULL)
        goto failed;
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *entry = PyList_GetItem(entries, number); /* NULL if a finalizer has shortened the list */
        char *bytes;
        Py_ssize_t size;
        if (entry == NULL || PyBytes_AsStringAndSize(entry, &bytes, &size) < 0)
            goto failed;
        if (size < STORED_HEAD_BYTES + DIGEST_BYTES)
            goto unsound;
        const unsigned char *head = (const unsigned char *)bytes, *body = head + STORED_HEAD_BYTES + DIGEST_BYTES;
        const Py_ssize_t payload_bytes = size - STORED_HEAD_BYTES - DIGEST_BYTES;
        const int64_t lac = read_i64(head + 16), length = read_i64(head + 24);
        const uint32_t crc = ~extend_crc(extend_crc(~0u, head, STORED_HEAD_BYTES), body, payload_bytes);
        if (crc != read_u32(head + STORED_HEAD_BYTES) || read_i64(head) != ledger_id ||
            read_i64(head + 8) != first_entry_id + number || lac < -1 || length < payload_bytes)
            goto unsound;
        if (lac > lac_max)
            lac_max = lac;
        PyObject *payload = PyBytes_FromStringAndSize((const char *)body, payload_bytes);
        PyObject *total = PyLong_FromLongLong(length);
        if (payload == NULL || total == NULL) {
            Py_XDECREF(payload);
            Py_XDECREF(total);
            goto failed;
        }
        PyList_SetItem(payloads, number, payload); /* take the references */
        PyList_SetItem(lengths, number, total);
    }
    return Py_BuildValue("NNL", payloads, lengths, lac_max);
unsound:
    Py_DECREF(payloads);
    Py_DECREF(lengths);
    Py_RETURN_NONE;
failed:
    Py_XDECREF(payloads);
    Py_XDECREF(lengths);
    return NULL;
}

static PyMethodDef functions[] = {
    {"batch_entries", batch_entries, METH_VARARGS, batch_entries_doc},
    {"framed_payloads", framed_payloads, METH_VARARGS, framed_payloads_doc},
    {"stored_payloads", stored_payloads, METH_VARARGS, stored_payloads_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "offloaderd_native",
    .m_doc = "Loops of offloaderd over entries, compiled; they answer for sound data only.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit_offloaderd_native(void)
{
    has_crc = processor_has_crc();
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddIntConstant(made, "INTERFACE", INTERFACE) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
