// A kernel bound to sizes, strides and a thread: a call sets addresses where they stand, and carries out its steps.
//
// A step is a function and places ("cells") of eight bytes, in which its arguments stand: an entry of a shared library
// with all its arguments, or the one block that they lie in, or a call of a GPU's driver, which returns a code.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__linux__) || !(defined(__x86_64__) || defined(__aarch64__)) || defined(Py_GIL_DISABLED)
#error "kernels are called in Python here: it is not known how functions take arguments, or there is no lock"
#endif

enum { MOST_TENSORS = 16, MOST_WHOLE = 36, MOST_REAL = 8 };

typedef uint64_t u64;
typedef int64_t i64;

typedef struct {
    void *function;
    int whole, real;    // numbers of arguments: addresses and integers, and floating-point ones
    bool code;          // whether it returns 0 where it succeeds
    const u64 **cells;  // whole ones, then real ones
} Step;

enum { DESCRIPTOR = 128, MOST_ENCODED = 32 };

typedef struct {
    u64 address;
    char bytes[DESCRIPTOR];
} Encoded;

typedef struct {
    int place;         // of the tensor among the addresses
    u64 *cell;         // where it stands, or the descriptor that
    PyObject *encode;  // gives the bytes of
    Encoded *encoded;  // of addresses that were met: a model's tensors come back to the same few
    u64 last;
} Slot;

typedef struct {
    int written, other;  // places
    i64 before, after;   // they may overlap where the distance of their addresses lies between these
} Near;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int addresses, slots, nears, steps, streams;
    Slot *slot;
    Near *near;
    Step *step;
    u64 **stream_cell;
    u64 stream;
    u64 apart[MOST_TENSORS];  // addresses that were looked at and do not overlap
    bool looked;
    PyObject *look, *failed, *run, *on, *keep;
} Bound;

// Both machines pass integers in registers of one kind and floating-point numbers in those of another, each in their
// order, and what is left on the stack, eight bytes each. So arguments may be sorted, and a function that takes fewer
// never sees the others.
static int carry_out(const Step *s) {
    u64 w[MOST_WHOLE];
    double r[MOST_REAL];
    for (int i = 0; i < s->whole; i++) w[i] = *s->cells[i];
    if (s->whole <= 4 && !s->real) {
        for (int i = s->whole; i < 4; i++) w[i] = 0;
        return ((int (*)(u64, u64, u64, u64))s->function)(w[0], w[1], w[2], w[3]);
    }
    for (int i = s->whole; i < MOST_WHOLE; i++) w[i] = 0;
    for (int i = 0; i < MOST_REAL; i++) r[i] = 0;
    for (int i = 0; i < s->real; i++) memcpy(&r[i], s->cells[s->whole + i], 8);
#define FOUR(n) u64, u64, u64, u64
#define PASS(n) w[n], w[n + 1], w[n + 2], w[n + 3]
    typedef int (*Any)(double, double, double, double, double, double, double, double, FOUR(0), FOUR(4), FOUR(8),
                       FOUR(12), FOUR(16), FOUR(20), FOUR(24), FOUR(28), FOUR(32));
    return ((Any)s->function)(r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7], PASS(0), PASS(4), PASS(8), PASS(12),
                              PASS(16), PASS(20), PASS(24), PASS(28), PASS(32));
#undef FOUR
#undef PASS
}

// Has Python decide whether arrays within each other's reach overlap; what was looked at last is remembered.
static int look_closely(Bound *b, const u64 *at) {
    size_t bytes = sizeof(u64) * (size_t)b->addresses;
    if (b->looked && !memcmp(b->apart, at, bytes)) return 0;
    PyObject *all = PyTuple_New(b->addresses);
    if (!all) return -1;
    for (int i = 0; i < b->addresses; i++) {
        PyObject *one = PyLong_FromUnsignedLongLong(at[i]);
        if (!one) return Py_DECREF(all), -1;
        PyTuple_SET_ITEM(all, i, one);
    }
    PyObject *done = PyObject_CallOneArg(b->look, all);
    Py_DECREF(all);
    if (!done) return -1;
    Py_DECREF(done);
    memcpy(b->apart, at, bytes);
    b->looked = true;
    return 0;
}

static int describe(Slot *slot, u64 address) {
    Encoded *kept = &slot->encoded[(address >> 8 ^ address >> 16) % MOST_ENCODED];
    slot->last = ~(u64)0;
    if (!address || kept->address != address) {
        PyObject *bytes = PyObject_CallFunction(slot->encode, "K", (unsigned long long)address);
        bool right = bytes && PyBytes_Check(bytes) && PyBytes_GET_SIZE(bytes) == DESCRIPTOR;
        if (right) memcpy(kept->bytes, PyBytes_AS_STRING(bytes), DESCRIPTOR), kept->address = address;
        if (bytes && !right) PyErr_SetString(PyExc_SystemError, "a descriptor of another size");
        Py_XDECREF(bytes);
        if (!right) return -1;
    }
    memcpy(slot->cell, kept->bytes, DESCRIPTOR);
    slot->last = address;
    return 0;
}

static int to_stream(Bound *b, u64 stream) {
    if (b->on) {
        PyObject *done = PyObject_CallFunction(b->on, "K", (unsigned long long)stream);
        if (!done) return -1;
        Py_DECREF(done);
    }
    for (int i = 0; i < b->streams; i++) *b->stream_cell[i] = stream;
    b->stream = stream;
    return 0;
}

// Runs on these addresses. 0, or -1 with an exception set.
static int fire(Bound *b, const u64 *at, u64 stream) {
    for (const Near *n = b->near; n < b->near + b->nears; n++) {
        i64 distance = (i64)(at[n->written] - at[n->other]);
        if (n->before < distance && distance < n->after) {
            if (look_closely(b, at)) return -1;
            break;
        }
    }
    for (Slot *s = b->slot; s < b->slot + b->slots; s++)
        if (!s->encode)
            *s->cell = at[s->place];
        else if (s->last != at[s->place] && describe(s, at[s->place]))
            return -1;
    if (stream != b->stream && to_stream(b, stream)) return -1;
    if (b->run) {
        PyObject *done = PyObject_CallNoArgs(b->run);
        Py_XDECREF(done);
        return done ? 0 : -1;
    }
    int code = 0, place = 0;
    PyThreadState *held = PyEval_SaveThread();  // kernels run while other threads of Python's go on
    for (; place < b->steps; place++)
        if ((code = carry_out(&b->step[place])) && b->step[place].code) break;
    PyEval_RestoreThread(held);
    if (place == b->steps) return 0;
    PyObject *done = PyObject_CallFunction(b->failed, "ii", place, code);
    if (done) PyErr_Format(PyExc_SystemError, "step %d failed with code %d", place, code);
    Py_XDECREF(done);
    return -1;
}

static PyTypeObject BoundType;

// The same without Python's lock, for a thread's own kernel. 1: it is to be done again with the lock, where a step needs
// Python or failed.
static int fire_unlocked(PyObject *self, const u64 *at, u64 stream) {
    Bound *b = (Bound *)self;
    if (Py_TYPE(self) != &BoundType || b->run || (stream != b->stream && b->on)) return 1;
    for (const Near *n = b->near; n < b->near + b->nears; n++) {
        i64 distance = (i64)(at[n->written] - at[n->other]);
        if (n->before < distance && distance < n->after) return 1;
    }
    for (const Slot *s = b->slot; s < b->slot + b->slots; s++)
        if (s->encode) return 1;
    for (const Slot *s = b->slot; s < b->slot + b->slots; s++) *s->cell = at[s->place];
    for (int i = 0; i < b->streams; i++) *b->stream_cell[i] = stream;
    b->stream = stream;
    for (int i = 0; i < b->steps; i++)
        if (carry_out(&b->step[i]) && b->step[i].code) return 1;
    return 0;
}

// From Python: the addresses, and a stream.
static PyObject *bound_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
    Bound *b = (Bound *)self;
    u64 at[MOST_TENSORS], stream;
    if (PyVectorcall_NARGS(flags) != 2 || (names && PyTuple_GET_SIZE(names)))
        return PyErr_SetString(PyExc_TypeError, "it takes addresses and a stream"), NULL;
    PyObject *all = PySequence_Fast(args[0], "addresses are a sequence");
    if (!all) return NULL;
    bool right = PySequence_Fast_GET_SIZE(all) == b->addresses;
    for (int i = 0; right && i < b->addresses; i++)
        at[i] = PyLong_AsUnsignedLongLong(PySequence_Fast_GET_ITEM(all, i));
    Py_DECREF(all);
    if (!right) return PyErr_Format(PyExc_ValueError, "it takes %d addresses", b->addresses);
    stream = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    Py_INCREF(self);
    int bad = fire(b, at, stream);
    Py_DECREF(self);
    return bad ? NULL : Py_NewRef(Py_None);
}

// Reads a tuple of tuples. -1 with an exception set where an item is not as the format asks.
#define EACH(all, item) for (Py_ssize_t item = 0; item < PyTuple_GET_SIZE(all); item++)

static int take_step(Step *s, PyObject *from) {
    PyObject *whole, *real;
    unsigned long long function;
    int code;
    if (!PyArg_ParseTuple(from, "KO!O!p", &function, &PyTuple_Type, &whole, &PyTuple_Type, &real, &code)) return -1;
    if (PyTuple_GET_SIZE(whole) > MOST_WHOLE || PyTuple_GET_SIZE(real) > MOST_REAL)
        return PyErr_SetString(PyExc_ValueError, "more arguments than a step can have"), -1;
    s->function = (void *)(uintptr_t)function;
    s->whole = (int)PyTuple_GET_SIZE(whole), s->real = (int)PyTuple_GET_SIZE(real), s->code = code;
    if (!(s->cells = PyMem_Calloc((size_t)(s->whole + s->real) + 1, sizeof *s->cells))) return PyErr_NoMemory(), -1;
    EACH(whole, i) s->cells[i] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(whole, i));
    EACH(real, i) s->cells[s->whole + i] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(real, i));
    return PyErr_Occurred() ? -1 : 0;
}

static int take_slot(Slot *s, PyObject *from, int addresses) {
    unsigned long long cell;
    PyObject *encode;
    if (!PyArg_ParseTuple(from, "iKO", &s->place, &cell, &encode)) return -1;
    if (s->place < 0 || s->place >= addresses) return PyErr_SetString(PyExc_ValueError, "no such place"), -1;
    s->last = ~(u64)0, s->cell = (u64 *)(uintptr_t)cell;
    if (encode == Py_None) return 0;
    s->encode = Py_NewRef(encode);
    return (s->encoded = PyMem_Calloc(MOST_ENCODED, sizeof *s->encoded)) ? 0 : (PyErr_NoMemory(), -1);
}

static int take_near(Near *n, PyObject *from, int addresses) {
    long long before, after;
    if (!PyArg_ParseTuple(from, "iiLL", &n->written, &n->other, &before, &after)) return -1;
    n->before = before, n->after = after;
    if (n->written >= 0 && n->written < addresses && n->other >= 0 && n->other < addresses) return 0;
    return PyErr_SetString(PyExc_ValueError, "no such place"), -1;
}

// Bound(addresses, slots, nears, look, steps, streams, failed, run, on, keep); firing.py says what these are.
static PyObject *bound_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *slots, *nears, *look, *steps, *streams, *failed, *run, *on, *keep, *t = (PyObject *)&PyTuple_Type;
    int addresses;
    if (!PyArg_ParseTuple(args, "iO!O!OO!O!OOOO", &addresses, t, &slots, t, &nears, &look, t, &steps, t, &streams,
                          &failed, &run, &on, &keep))
        return NULL;
    if (addresses < 0 || addresses > MOST_TENSORS) return PyErr_SetString(PyExc_ValueError, "too many tensors"), NULL;
    Bound *b = (Bound *)type->tp_alloc(type, 0);
    if (!b) return NULL;
    b->vectorcall = bound_call, b->addresses = addresses;
    b->look = Py_NewRef(look), b->failed = Py_NewRef(failed), b->keep = Py_NewRef(keep);
    b->run = run == Py_None ? NULL : Py_NewRef(run), b->on = on == Py_None ? NULL : Py_NewRef(on);
    b->slot = PyMem_Calloc((size_t)PyTuple_GET_SIZE(slots) + 1, sizeof *b->slot);
    b->near = PyMem_Calloc((size_t)PyTuple_GET_SIZE(nears) + 1, sizeof *b->near);
    b->step = PyMem_Calloc((size_t)PyTuple_GET_SIZE(steps) + 1, sizeof *b->step);
    b->stream_cell = PyMem_Calloc((size_t)PyTuple_GET_SIZE(streams) + 1, sizeof *b->stream_cell);
    if (!b->slot || !b->near || !b->step || !b->stream_cell) {
        PyErr_NoMemory();
        goto bad;
    }
    EACH(slots, i) if (take_slot(&b->slot[b->slots++], PyTuple_GET_ITEM(slots, i), addresses)) goto bad;
    EACH(nears, i) if (take_near(&b->near[b->nears++], PyTuple_GET_ITEM(nears, i), addresses)) goto bad;
    EACH(steps, i) if (take_step(&b->step[b->steps++], PyTuple_GET_ITEM(steps, i))) goto bad;
    EACH(streams, i) b->stream_cell[b->streams++] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(streams, i));
    if (!PyErr_Occurred()) return (PyObject *)b;
bad:
    Py_DECREF(b);
    return NULL;
}

static int bound_traverse(PyObject *self, visitproc visit, void *arg) {
    Bound *b = (Bound *)self;
    for (int i = 0; i < b->slots; i++) Py_VISIT(b->slot[i].encode);
    Py_VISIT(b->look);
    Py_VISIT(b->failed);
    Py_VISIT(b->run);
    Py_VISIT(b->on);
    Py_VISIT(b->keep);
    return 0;
}

static void bound_dealloc(PyObject *self) {
    Bound *b = (Bound *)self;
    PyObject_GC_UnTrack(self);
    for (int i = 0; i < b->slots; i++) Py_XDECREF(b->slot[i].encode), PyMem_Free(b->slot[i].encoded);
    for (int i = 0; i < b->steps; i++) PyMem_Free(b->step[i].cells);
    PyMem_Free(b->slot), PyMem_Free(b->near), PyMem_Free(b->step), PyMem_Free(b->stream_cell);
    Py_XDECREF(b->look), Py_XDECREF(b->failed), Py_XDECREF(b->run), Py_XDECREF(b->on), Py_XDECREF(b->keep);
    Py_TYPE(self)->tp_free(self);
}

// What a bound kernel holds, memory included, never leads back to it: there is nothing to clear.
static PyTypeObject BoundType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "deepgen_calls.Bound",
    .tp_basicsize = sizeof(Bound),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = bound_new,
    .tp_dealloc = bound_dealloc,
    .tp_traverse = bound_traverse,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Bound, vectorcall),
};
