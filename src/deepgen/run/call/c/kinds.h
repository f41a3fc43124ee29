// The arguments of a call by their places, its key, and what calls with the same key have in common.
#pragma once
#include "arrays.h"

enum { HEADS = 256, MOST_KINDS = 1000, MOST_SCALARS = 8 };

typedef struct {
    int place;              // of the tensor that is made
    PyObject *make;         // from the first array, or
    PyArray_Descr *format;  // of an array of numpy's
    int dimensions;
    npy_intp shape[MOST_DIMENSIONS];
} Maker;

// Calls with one key.
typedef struct Kind {
    struct Kind *next;
    int holders;
    Bound *bound;
    PyObject *named;
    int makers, words;
    Maker maker[MOST_TENSORS];
    u64 hash, key[];
} Kind;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *names, *scalars;  // of tensors in the order of their addresses, and of numbers
    int tensors, needed, outputs;
    int position[MOST_TENSORS], output[MOST_TENSORS];  // places: of what is given by position, and of what is written
    u64 mask[MOST_TENSORS];                            // bits of an address that must be zero
    bool on_gpu, by_stream;
    PyObject *first;      // the Python way: from all arguments to the result and what is ready for others like it
    PyObject *otherwise;  // the same, to the result alone
    PyObject *stream_of, *trouble, *recover;  // on a GPU
    int kinds;
    Kind *heads[HEADS];
} Caller;

static PyObject *name_out, *name_stream, *name_fire, *name_makers;

// --- kinds of calls ---------------------------------------------------------------------------------------------------

static void let_go(Kind *kind) {
    if (--kind->holders) return;
    for (int i = 0; i < kind->makers; i++) {
        Py_XDECREF(kind->maker[i].make);
        Py_XDECREF(kind->maker[i].format);
    }
    Py_XDECREF(kind->bound);
    Py_XDECREF(kind->named);
    PyMem_Free(kind);
}

static void forget_all(Caller *c) {
    Kind *all = NULL;
    for (int i = 0; i < HEADS; i++)
        while (c->heads[i]) {
            Kind *one = c->heads[i];
            c->heads[i] = one->next, one->next = all, all = one;
        }
    c->kinds = 0;
    while (all) {  // what goes with them may call anything
        Kind *one = all;
        all = one->next;
        let_go(one);
    }
}

static u64 hashed(const Key *key) {
    u64 hash = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < key->count; i++) {
        hash = (hash ^ key->words[i]) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return hash;
}

static Kind *met_before(const Caller *c, const Key *key, u64 hash) {
    for (Kind *k = c->heads[hash % HEADS]; k; k = k->next)
        if (k->hash == hash && k->words == key->count && !memcmp(k->key, key->words, sizeof(u64) * (size_t)k->words))
            return k;
    return NULL;
}

// --- the arguments of a call ------------------------------------------------------------------------------------------

typedef struct {
    PyObject *array[MOST_TENSORS];  // borrowed, NULL where none is given
    PyObject *number[MOST_SCALARS];
    PyObject *stream;
} Given;

static int place_of(PyObject *names, PyObject *name) {
    EACH(names, i) if (PyTuple_GET_ITEM(names, i) == name) return (int)i;
    EACH(names, i) if (!PyUnicode_Compare(PyTuple_GET_ITEM(names, i), name)) return (int)i;
    return -1;
}

// Puts results where the tensors are that no other argument names.
static bool place_results(const Caller *c, PyObject *out, Given *given) {
    int open[MOST_TENSORS], count = 0;
    for (int i = 0; i < c->outputs; i++)
        if (!given->array[c->output[i]]) open[count++] = c->output[i];
    if (PyTuple_CheckExact(out)) {
        if (PyTuple_GET_SIZE(out) != count) return false;
        for (int i = 0; i < count; i++) {
            PyObject *one = PyTuple_GET_ITEM(out, i);
            given->array[open[i]] = one == Py_None ? NULL : one;
        }
        return true;
    }
    if (count != 1 || PyList_Check(out) || PyDict_Check(out)) return false;
    given->array[open[0]] = out;
    return true;
}

// False: the Python way is to see to it.
static bool sort_arguments(const Caller *c, PyObject *const *args, Py_ssize_t count, PyObject *names, Given *given) {
    memset(given, 0, sizeof *given);
    if (count > c->needed) return false;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (args[i] == Py_None) return false;
        given->array[c->position[i]] = args[i];
    }
    PyObject *out = NULL;
    if (names) EACH(names, i) {
        PyObject *name = PyTuple_GET_ITEM(names, i), *value = args[count + i];
        int place;
        if (name == name_out) {
            out = value;
        } else if (name == name_stream) {
            given->stream = value;
        } else if ((place = place_of(c->names, name)) >= 0) {
            if (given->array[place]) return false;
            given->array[place] = value == Py_None ? NULL : value;
        } else if ((place = place_of(c->scalars, name)) >= 0) {
            given->number[place] = value;
        } else {
            return false;
        }
    }
    if (out && out != Py_None && !place_results(c, out, given)) return false;
    for (int i = 0; i < c->needed; i++)
        if (!given->array[c->position[i]]) return false;
    return true;
}

static bool add_number(Key *key, PyObject *number) {
    u64 bits = 0;
    int overflow = 0;
    if (!number) {
        put(key, 0);
    } else if (PyFloat_CheckExact(number)) {
        double value = PyFloat_AS_DOUBLE(number);
        memcpy(&bits, &value, 8);
        put(key, 1), put(key, bits);
    } else if (PyLong_CheckExact(number)) {
        bits = (u64)PyLong_AsLongLongAndOverflow(number, &overflow);
        put(key, 2), put(key, bits);
    } else {
        return false;
    }
    return !overflow;
}

static bool find_stream(const Caller *c, PyObject *stream, const Seen *first, u64 *handle) {
    *handle = 0;
    if (stream && stream != Py_None) {
        if (!c->on_gpu) return false;
        PyObject *number = PyLong_CheckExact(stream) ? Py_NewRef(stream) : PyObject_CallOneArg(c->stream_of, stream);
        if (number) *handle = PyLong_AsUnsignedLongLong(number);
        Py_XDECREF(number);
        bool right = !PyErr_Occurred();
        PyErr_Clear();
        return right;
    }
    if (!c->on_gpu || first->library != TORCH) return true;
    if (first->device.type != OF_CUDA && first->device.type != OF_ROCM) return false;
    void *current = NULL;
    if (first->exchange->current_stream(first->device.type, first->device.id, &current)) return PyErr_Clear(), false;
    *handle = (u64)(uintptr_t)current;
    return true;
}

// The key of a call and its addresses. `first` is the place of the first array.
static bool read_call(const Caller *c, const Given *given, Key *key, u64 *at, int *first, u64 *stream) {
    Seen seen = {0}, of_first = {0};
    key->count = 2;
    *first = -1;
    key->words[0] = PyThread_get_thread_ident();
    for (int i = 0; i < c->tensors; i++) {
        if (!given->array[i]) {
            put(key, ~(u64)0);
            continue;
        }
        if (!read_array(given->array[i], key, &seen)) return false;
        at[i] = seen.address;
        if (*first < 0) *first = i, of_first = seen;
    }
    EACH(c->scalars, i) if (!add_number(key, given->number[i])) return false;
    if (*first < 0 || !find_stream(c, given->stream, &of_first, stream)) return false;
    key->words[1] = c->by_stream ? *stream : 0;
    return true;
}
