/*
 * Loops over entries and messages, compiled: those that a profile of the daemon, of a direct read and of a table shows
 * (docs/speed.md).
 *
 * Each function answers for sound data only. For all other it returns None, and the caller's loop in Python says what
 * is wrong, and where. So the rules are those of the callers: `offloaderd/core/entries.py`, `offloaderd/bookkeeper/wire`,
 * `offloaderd/format/pulsar/messages.py` and `offloaderd/spark/values.py`; tests compare both on sound and on damaged data.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* 3.11: one wheel for it and all later versions */
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FRAME_HEAD_BYTES 12  /* payload length, entry id (FORMAT.md, section 1) */
#define STORED_HEAD_BYTES 32 /* ledger, entry, LAC, length (WIRE.md, section 5) */
#define DIGEST_BYTES 4       /* of CRC32C */
#define SIZE_BYTES 4         /* before each entry of an answer to a batch read (WIRE.md, section 2), and each head of a batch */
#define DEPTH_MAX 64         /* of records and arrays inside of each other */
#define INTERFACE 3          /* goes up when a function changes; offloaderd/core/native.py wants this one */

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

/* The messages of a batch of Pulsar: for each the length of its SingleMessageMetadata, these, and its value. */

/* What is left of a message of protobuf. */
typedef struct {
    const unsigned char *at, *end;
} Rest;

typedef struct {
    const unsigned char *at;
    Py_ssize_t size;
} Text;

/* Each field but `properties`; a bit of `seen` for each number that was there. */
typedef struct {
    unsigned seen;
    uint64_t payload_size, event_time, sequence_id, compacted_out, base64_key, null_value, null_key;
    Text key, ordering_key;
} Single;

/* Return whether a number is there, in as few bytes as it needs. */
static int take_number(Rest *rest, uint64_t *number)
{
    *number = 0;
    for (unsigned bits = 0; bits < 64 && rest->at < rest->end; bits += 7) {
        const unsigned char byte = *rest->at++;
        if (bits == 63 && byte > 1)
            return 0;
        *number |= (uint64_t)(byte & 0x7f) << bits;
        if (byte < 0x80)
            return byte != 0 || bits == 0;
    }
    return 0;
}

static int take_text(Rest *rest, Text *text)
{
    uint64_t size;
    if (!take_number(rest, &size) || size > (uint64_t)(rest->end - rest->at))
        return 0;
    text->at = rest->at;
    text->size = (Py_ssize_t)size;
    rest->at += size;
    return 1;
}

/* Return a text, NULL without an error if it is not one in UTF-8. */
static PyObject *text_of(const Text *text)
{
    PyObject *made = PyUnicode_DecodeUTF8((const char *)text->at, text->size, "strict");
    if (made == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
        PyErr_Clear();
    return made;
}

/* Return whether a key is in UTF-8; without a Python object for one in ASCII. */
static int is_text(const Text *text)
{
    for (Py_ssize_t at = 0; at < text->size; at++) {
        if (text->at[at] >= 0x80) {
            PyObject *made = text_of(text);
            Py_XDECREF(made);
            return made != NULL;
        }
    }
    return 1;
}

/* Add a property: 1 for one that was added, 0 for one that is not sound, -1 with an error. */
static int take_property(Rest *rest, PyObject **properties)
{
    Text whole, parts[2];
    unsigned seen = 0;
    if (!take_text(rest, &whole))
        return 0;
    for (Rest inner = {whole.at, whole.at + whole.size}; inner.at < inner.end;) {
        const unsigned char tag = *inner.at++;
        if ((tag != 0x0a && tag != 0x12) || seen & 1u << (tag >> 3) || !take_text(&inner, &parts[(tag >> 3) - 1]))
            return 0;
        seen |= 1u << (tag >> 3);
    }
    if (seen != (1u << 1 | 1u << 2))
        return 0;
    PyObject *key = text_of(&parts[0]), *value = key == NULL ? NULL : text_of(&parts[1]);
    int added = -1;
    if (value != NULL && (*properties != NULL || (*properties = PyDict_New()) != NULL))
        added = PyDict_SetItem(*properties, key, value) == 0 ? 1 : -1;
    Py_XDECREF(key);
    Py_XDECREF(value);
    return added < 0 && !PyErr_Occurred() ? 0 : added;
}

/* Read the fields of a message, its properties into a new dictionary: 1 if they are sound, 0 if not, -1 with an error. */
static int take_single(Rest rest, Single *single, PyObject **properties)
{
    memset(single, 0, sizeof *single);
    while (rest.at < rest.end) {
        const unsigned char tag = *rest.at++;
        if (tag == 0x0a) {
            const int added = take_property(&rest, properties);
            if (added <= 0)
                return added;
            continue;
        }
        const unsigned bit = 1u << (tag >> 3);
        int taken = 0;
        if (single->seen & bit)
            return 0;
        single->seen |= bit;
        switch (tag) {
        case 0x12: taken = take_text(&rest, &single->key); break;
        case 0x18: taken = take_number(&rest, &single->payload_size); break;
        case 0x20: taken = take_number(&rest, &single->compacted_out); break;
        case 0x28: taken = take_number(&rest, &single->event_time); break;
        case 0x30: taken = take_number(&rest, &single->base64_key); break;
        case 0x3a: taken = take_text(&rest, &single->ordering_key); break;
        case 0x40: taken = take_number(&rest, &single->sequence_id); break;
        case 0x48: taken = take_number(&rest, &single->null_value); break;
        case 0x50: taken = take_number(&rest, &single->null_key); break;
        }
        if (!taken)
            return 0;
    }
    return single->seen & 1u << 3 && single->payload_size <= INT32_MAX && !single->compacted_out &&
           !single->base64_key && single->null_value <= 1 && single->null_key <= 1;
}

/* Return the items of a dictionary as a tuple, none of NULL: the one without items exists already. */
static PyObject *tuple_of(PyObject *properties)
{
    PyObject *items = properties == NULL ? NULL : PyDict_Items(properties);
    if (items == NULL)
        return properties == NULL ? PyTuple_New(0) : NULL;
    PyObject *made = PyList_AsTuple(items);
    Py_DECREF(items);
    return made;
}

/* Put a new reference, or None where there is no value, into a list: 0, or -1 with an error. */
static int put(PyObject *list, Py_ssize_t number, int there, PyObject *made)
{
    if (!there) {
        Py_INCREF(Py_None);
        made = Py_None;
    }
    return made == NULL ? -1 : PyList_SetItem(list, number, made);
}

PyDoc_STRVAR(
    batch_columns_doc,
    "batch_columns(content, count, sequence_id)\n--\n\n"
    "Return the values, keys, properties, sequence ids and event times of exactly `count` messages, lists of one for\n"
    "each, None for a value that a message does not have; None if the content is not that, or has what is rare.");

static PyObject *batch_columns(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *content;
    Py_ssize_t count, size;
    long long sequence_id;
    char *bytes;
    if (!PyArg_ParseTuple(args, "SnL", &content, &count, &sequence_id))
        return refuse_arguments();
    if (PyBytes_AsStringAndSize(content, &bytes, &size) < 0)
        return NULL;
    if (count < 0 || count > size / SIZE_BYTES || sequence_id > INT64_MAX - count)
        Py_RETURN_NONE;
    PyObject *values = PyList_New(count), *keys = PyList_New(count), *all_properties = PyList_New(count);
    PyObject *sequence_ids = PyList_New(count), *times = PyList_New(count), *properties = NULL;
    if (values == NULL || keys == NULL || all_properties == NULL || sequence_ids == NULL || times == NULL)
        goto failed;
    const unsigned char *at = (const unsigned char *)bytes, *end = at + size;
    for (Py_ssize_t number = 0; number < count; number++) {
        Single one;
        if (end - at < SIZE_BYTES)
            goto unsound;
        const uint32_t head = read_u32(at);
        at += SIZE_BYTES;
        if (head > INT32_MAX || (Py_ssize_t)head > end - at)
            goto unsound;
        const int sound = take_single((Rest){at, at + head}, &one, &properties);
        if (sound < 0)
            goto failed;
        at += head;
        if (!sound || one.payload_size > (uint64_t)(end - at))
            goto unsound;
        if (!is_text(&one.key)) {
            if (PyErr_Occurred())
                goto failed;
            goto unsound;
        }
        const Py_ssize_t payload_bytes = (Py_ssize_t)one.payload_size;
        const int has_key = one.seen & 1u << 2 && !one.null_key, has_id = (one.seen & 1u << 8) != 0;
        if (put(values, number, !one.null_value,
                one.null_value ? NULL : PyBytes_FromStringAndSize((const char *)at, payload_bytes)) < 0 ||
            put(keys, number, has_key,
                has_key ? PyBytes_FromStringAndSize((const char *)one.key.at, one.key.size) : NULL) < 0 ||
            put(all_properties, number, 1, tuple_of(properties)) < 0 ||
            put(sequence_ids, number, 1,
                has_id ? PyLong_FromUnsignedLongLong(one.sequence_id) : PyLong_FromLongLong(sequence_id + number)) < 0 ||
            put(times, number, one.event_time != 0,
                one.event_time != 0 ? PyLong_FromUnsignedLongLong(one.event_time) : NULL) < 0)
            goto failed;
        Py_CLEAR(properties);
        at += payload_bytes;
    }
    if (at == end)
        return Py_BuildValue("NNNNN", values, keys, all_properties, sequence_ids, times);
unsound:
    Py_XDECREF(properties);
    Py_DECREF(values);
    Py_DECREF(keys);
    Py_DECREF(all_properties);
    Py_DECREF(sequence_ids);
    Py_DECREF(times);
    Py_RETURN_NONE;
failed:
    Py_XDECREF(properties);
    Py_XDECREF(values);
    Py_XDECREF(keys);
    Py_XDECREF(all_properties);
    Py_XDECREF(sequence_ids);
    Py_XDECREF(times);
    return NULL;
}

/* Values in Avro by columns, as Arrow lays them out. */

/* A column of a schema: `inside` columns follow it, the fields of a record or the items of an array. */
typedef struct {
    int32_t kind, null_branch, argument, inside;
} Shape;

enum { BOOLEAN = '?', INT = 'i', LONG = 'q', FLOAT = 'f', DOUBLE = 'd', BYTES = 's', FIXED = 'x', DECIMAL = 'n', ENUM = 'e', RECORD = 'r', ARRAY = 'a' };

#define DECIMAL_BYTES 16 /* of Arrow's, the least first; Avro has as few as it needs, or as a fixed has, the least last */

typedef struct {
    char *at;
    size_t size, room;
} Buffer;

/* `there`: a byte for each value, 0 for null. `ends`: of texts in `values`, of arrays in the column of items. */
typedef struct {
    Shape shape;
    Buffer there, values, ends;
    int has_nulls;
} Column;

enum { NO_MEMORY = -1, UNSOUND = 0, SOUND = 1 };

static int add(Buffer *buffer, const void *data, size_t size)
{
    if (size == 0)
        return SOUND;
    if (size > buffer->room - buffer->size) {
        const size_t room = 2 * buffer->room + size + 64;
        char *moved = realloc(buffer->at, room);
        if (moved == NULL)
            return NO_MEMORY;
        buffer->at = moved;
        buffer->room = room;
    }
    memcpy(buffer->at + buffer->size, data, size);
    buffer->size += size;
    return SOUND;
}

static int add_end(Column *column, size_t end)
{
    const int32_t number = (int32_t)end;
    return end > INT32_MAX ? UNSOUND : add(&column->ends, &number, sizeof number);
}

static size_t width_of(int32_t kind)
{
    switch (kind) {
    case BOOLEAN: return 1;
    case INT: case FLOAT: case ENUM: return 4;
    case LONG: case DOUBLE: return 8;
    case DECIMAL: return DECIMAL_BYTES;
    }
    return 0;
}

/* Add a null to a column and, of a record, to those of its fields. */
static int add_null(Column *column)
{
    static const char nothing[DECIMAL_BYTES];
    const Shape *shape = &column->shape;
    int added = add(&column->there, nothing, 1);
    column->has_nulls = 1;
    if (added == SOUND && (shape->kind == BYTES || shape->kind == FIXED))
        added = add_end(column, column->values.size);
    else if (added == SOUND && shape->kind == ARRAY)
        added = add_end(column, column[1].there.size);
    else if (added == SOUND)
        added = add(&column->values, nothing, width_of(shape->kind));
    if (shape->kind == RECORD)
        for (Column *field = column + 1; added == SOUND && field <= column + shape->inside; field += 1 + field->shape.inside)
            added = add_null(field);
    return added;
}

static int take_long(Rest *rest, int64_t *number)
{
    uint64_t coded;
    if (!take_number(rest, &coded))
        return UNSOUND;
    *number = (int64_t)(coded >> 1) ^ -(int64_t)(coded & 1);
    return SOUND;
}

static int take_value(Rest *rest, Column *column);

static int take_items(Rest *rest, Column *items)
{
    for (;;) {
        int64_t count, size;
        if (!take_long(rest, &count))
            return UNSOUND;
        if (count == 0)
            return SOUND;
        if (count < 0) { /* its size in bytes follows */
            if (count == INT64_MIN || !take_long(rest, &size))
                return UNSOUND;
            count = -count;
        }
        if (count > rest->end - rest->at) /* each item has a byte */
            return UNSOUND;
        for (; count > 0; count--) {
            const int taken = take_value(rest, items);
            if (taken != SOUND)
                return taken;
        }
    }
}

static int take_decimal(Rest *rest, Column *column)
{
    int64_t size = column->shape.argument;
    unsigned char number[DECIMAL_BYTES];
    if ((size == 0 && !take_long(rest, &size)) || size < 0 || size > DECIMAL_BYTES || size > rest->end - rest->at)
        return UNSOUND;
    if (size == DECIMAL_BYTES && *rest->at == 0x80) /* Arrow takes the least number of all for one of any precision */
        return UNSOUND;
    memset(number, size > 0 && *rest->at & 0x80 ? 0xff : 0, sizeof number);
    for (int64_t at = 0; at < size; at++)
        number[at] = rest->at[size - 1 - at];
    rest->at += size;
    return add(&column->values, number, sizeof number);
}

/* Take a value of one kind, and add it to its column. */
static int take_plain(Rest *rest, Column *column)
{
    const Shape *shape = &column->shape;
    int64_t number = 0;
    int32_t small;
    size_t size = width_of(shape->kind);
    switch (shape->kind) {
    case BYTES: case INT: case LONG: case ENUM:
        if (!take_long(rest, &number))
            return UNSOUND;
        break;
    case FIXED: number = shape->argument; break;
    case DECIMAL: return take_decimal(rest, column);
    }
    switch (shape->kind) {
    case LONG: return add(&column->values, &number, sizeof number);
    case ENUM: case INT:
        if (shape->kind == ENUM ? number < 0 || number >= shape->argument : number != (int32_t)number)
            return UNSOUND;
        small = (int32_t)number;
        return add(&column->values, &small, sizeof small);
    case BYTES: case FIXED: size = (size_t)number; break;
    }
    if (number < 0 || size > (size_t)(rest->end - rest->at) || (shape->kind == BOOLEAN && *rest->at > 1))
        return UNSOUND;
    if (add(&column->values, rest->at, size) != SOUND)
        return NO_MEMORY;
    rest->at += size;
    return shape->kind == BYTES || shape->kind == FIXED ? add_end(column, column->values.size) : SOUND;
}

/* Take a value into its column and those inside. */
static int take_value(Rest *rest, Column *column)
{
    const Shape *shape = &column->shape;
    int64_t branch;
    if (shape->null_branch >= 0) {
        if (!take_long(rest, &branch) || branch < 0 || branch > 1)
            return UNSOUND;
        if (branch == shape->null_branch)
            return add_null(column);
    }
    int taken = add(&column->there, "\1", 1);
    if (taken != SOUND)
        return taken;
    if (shape->kind == RECORD) {
        for (Column *field = column + 1; taken == SOUND && field <= column + shape->inside; field += 1 + field->shape.inside)
            taken = take_value(rest, field);
        return taken;
    }
    if (shape->kind == ARRAY) {
        taken = take_items(rest, column + 1);
        return taken == SOUND ? add_end(column, column[1].there.size) : taken;
    }
    return take_plain(rest, column);
}

/* Return the place behind a column and those inside; NULL if they are no schema. */
static const Column *behind(const Column *column, const Column *end, int depth)
{
    const Shape *shape = &column->shape;
    const int nested = shape->kind == RECORD || shape->kind == ARRAY;
    if (depth > DEPTH_MAX || shape->argument < 0 || nested != (shape->inside > 0) || shape->inside >= end - column ||
        (!nested && shape->kind != BYTES && shape->kind != FIXED && width_of(shape->kind) == 0))
        return NULL;
    const Column *inner = column + 1, *upto = inner + shape->inside;
    do
        inner = inner < upto ? behind(inner, upto, depth + 1) : inner;
    while (inner != NULL && inner < upto && shape->kind == RECORD);
    return inner == upto ? upto : NULL;
}

/* Return a buffer as bytes, None if it is not wanted, and give its memory back: columns may be large. */
static PyObject *bytes_of(Buffer *buffer, int wanted)
{
    PyObject *made = wanted ? PyBytes_FromStringAndSize(buffer->at, (Py_ssize_t)buffer->size) : Py_NewRef(Py_None);
    free(buffer->at);
    buffer->at = NULL;
    return made;
}

PyDoc_STRVAR(
    avro_columns_doc,
    "avro_columns(schema, contents)\n--\n\n"
    "Return the columns of values in Avro, in the order of the schema: for each a byte for every value, 0 for null (None\n"
    "if none is), the values, and the ends of texts or arrays (None for others). `schema` has four numbers of 32 bits for\n"
    "each column: kind, branch of the union that is null or -1, size or number of symbols, number of columns inside.\n"
    "None if a value is not sound.");

static PyObject *avro_columns(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *contents, *found = NULL;
    const char *shapes;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#O!", &shapes, &size, &PyList_Type, &contents))
        return NULL;
    const uint16_t order = 1;
    const Py_ssize_t count = size / (Py_ssize_t)sizeof(Shape), rows = PyList_Size(contents);
    if (count == 0 || *(const char *)&order != 1) /* Avro and Arrow have the least byte first */
        Py_RETURN_NONE;
    Column *columns = calloc((size_t)count, sizeof *columns);
    if (columns == NULL)
        return PyErr_NoMemory();
    int taken = SOUND;
    for (Py_ssize_t number = 0; number < count; number++) {
        memcpy(&columns[number].shape, shapes + number * (Py_ssize_t)sizeof(Shape), sizeof(Shape));
        const int32_t kind = columns[number].shape.kind;
        if (taken == SOUND && (kind == BYTES || kind == FIXED || kind == ARRAY))
            taken = add_end(&columns[number], 0);
    }
    if (taken == SOUND && behind(columns, columns + count, 0) != columns + count)
        taken = UNSOUND;
    for (Py_ssize_t row = 0; taken == SOUND && row < rows; row++) {
        PyObject *content = PyList_GetItem(contents, row); /* borrowed */
        char *at;
        Py_ssize_t bytes;
        if (content == Py_None) {
            taken = add_null(columns);
            continue;
        }
        if (PyBytes_AsStringAndSize(content, &at, &bytes) < 0)
            goto done;
        Rest rest = {(const unsigned char *)at, (const unsigned char *)at + bytes};
        taken = take_value(&rest, columns);
        if (taken == SOUND && rest.at != rest.end)
            taken = UNSOUND;
    }
    if (taken == NO_MEMORY)
        PyErr_NoMemory();
    else if (taken == UNSOUND)
        found = Py_NewRef(Py_None);
    else
        found = PyList_New(count);
    for (Py_ssize_t number = 0; taken == SOUND && found != NULL && number < count; number++) {
        Column *column = &columns[number];
        PyObject *there = bytes_of(&column->there, column->has_nulls), *values = bytes_of(&column->values, 1);
        PyObject *one = Py_BuildValue("NNN", there, values, bytes_of(&column->ends, column->ends.size != 0));
        if (one == NULL || PyList_SetItem(found, number, one) < 0)
            Py_CLEAR(found);
    }
done:
    for (Py_ssize_t number = 0; number < count; number++) {
        free(columns[number].there.at);
        free(columns[number].values.at);
        free(columns[number].ends.at);
    }
    free(columns);
    return found;
}

static PyMethodDef functions[] = {
    {"avro_columns", avro_columns, METH_VARARGS, avro_columns_doc},
    {"batch_columns", batch_columns, METH_VARARGS, batch_columns_doc},
    {"batch_entries", batch_entries, METH_VARARGS, batch_entries_doc},
    {"framed_payloads", framed_payloads, METH_VARARGS, framed_payloads_doc},
    {"stored_payloads", stored_payloads, METH_VARARGS, stored_payloads_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "offloaderd_native",
    .m_doc = "Loops of offloaderd over entries and messages, compiled; they answer for sound data only.",
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
