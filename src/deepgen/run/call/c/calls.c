// Loaded kernels as functions of Python's, in C: for calls like those that the Python way has accepted before.
//
// A call's key is what the Python way looks at: which arrays are given, their shapes, strides, formats and devices, run-
// time scalars, the thread, and the stream where it matters. A key that was not met, and whatever cannot be read here,
// goes the Python way, which computes or refuses; where it computed, it leaves the bound kernel under the key. What may
// differ between calls with the same key are addresses: these are checked here, and where one does not fit, the Python
// way refuses it.
#include "kinds.h"

// --- calls ------------------------------------------------------------------------------------------------------------

static PyObject *by_python(Caller *c, PyObject *way, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    Py_ssize_t all = count + (names ? PyTuple_GET_SIZE(names) : 0);
    PyObject **more = PyMem_Malloc(sizeof *more * (size_t)(all + 1));
    if (!more) return PyErr_NoMemory();
    more[0] = (PyObject *)c;
    if (all) memcpy(more + 1, args, sizeof *more * (size_t)all);
    PyObject *result = PyObject_Vectorcall(way, more, (size_t)count + 1, names);
    PyMem_Free(more);
    return result;
}

static int add_maker(Kind *kind, int place, PyObject *make, PyObject *result) {
    Maker *m = &kind->maker[kind->makers++];
    m->place = place;
    if (PyArray_CheckExact(result)) {  // one of memory of its own, which nothing but its format and shape decide
        PyArrayObject *a = (PyArrayObject *)result;
        if (!PyArray_BASE(a) && PyArray_IS_C_CONTIGUOUS(a) && PyArray_NDIM(a) <= MOST_DIMENSIONS) {
            m->format = (PyArray_Descr *)Py_NewRef(PyArray_DESCR(a)), m->dimensions = PyArray_NDIM(a);
            for (int i = 0; i < m->dimensions; i++) m->shape[i] = PyArray_DIM(a, i);
            return 0;
        }
    }
    m->make = Py_NewRef(make);
    return 0;
}

// What calls with this key need; NULL, without an exception, where the Python way left nothing of use.
static Kind *new_kind(const Caller *c, const Key *key, u64 hash, const Given *given, PyObject *both) {
    PyObject *result = PyTuple_GET_ITEM(both, 0), *ready = PyTuple_GET_ITEM(both, 1);
    PyObject *bound = PyObject_GetAttr(ready, name_fire), *makers = PyObject_GetAttr(ready, name_makers);
    PyObject *named = PyList_New(0);
    Kind *kind = PyMem_Calloc(1, sizeof *kind + sizeof(u64) * (size_t)key->count);
    bool right = bound && Py_TYPE(bound) == &BoundType && makers && PyDict_Check(makers) && named && kind;
    if (right) {
        kind->holders = 1, kind->hash = hash, kind->words = key->count;
        kind->bound = (Bound *)Py_NewRef(bound), kind->named = Py_NewRef(named);
        memcpy(kind->key, key->words, sizeof(u64) * (size_t)key->count);
    }
    int present = 0;
    for (int i = 0; right && i < c->tensors; i++)
        if (given->array[i]) present++, right = !keep_named(named, given->array[i]);
    for (int i = 0; right && i < c->outputs; i++) {
        int place = c->output[i];
        if (given->array[place]) continue;
        PyObject *make = PyDict_GetItemWithError(makers, PyTuple_GET_ITEM(c->names, place));
        PyObject *one = c->outputs == 1 ? result : PyTuple_GET_ITEM(result, i);
        right = make && !add_maker(kind, place, make, one);
    }
    right = right && present + kind->makers == kind->bound->addresses;
    Py_XDECREF(bound), Py_XDECREF(makers), Py_XDECREF(named);
    PyErr_Clear();
    if (right) return kind;
    if (kind && kind->holders)
        let_go(kind);
    else
        PyMem_Free(kind);
    return NULL;
}

static PyObject *first_call(Caller *c, PyObject *const *args, Py_ssize_t count, PyObject *names, const Given *given,
                            const Key *key, u64 hash) {
    PyObject *both = by_python(c, c->first, args, count, names);
    if (!both) return NULL;
    if (!PyTuple_CheckExact(both) || PyTuple_GET_SIZE(both) != 2) {
        Py_DECREF(both);
        return PyErr_SetString(PyExc_SystemError, "a first call gives a result and what is ready"), NULL;
    }
    Kind *kind = met_before(c, key, hash) ? NULL : new_kind(c, key, hash, given, both);
    if (kind) {
        if (c->kinds >= MOST_KINDS) forget_all(c);
        kind->next = c->heads[hash % HEADS], c->heads[hash % HEADS] = kind, c->kinds++;
    }
    PyObject *result = Py_NewRef(PyTuple_GET_ITEM(both, 0));
    Py_DECREF(both);
    return result;
}

static PyObject *make_result(const Maker *m, PyObject *first) {
    if (m->make) return PyObject_CallOneArg(m->make, first);
    Py_INCREF(m->format);
    return PyArray_Empty(m->dimensions, (npy_intp *)m->shape, m->format, 0);
}

// Once more where the first try showed that this thread was not ready for the device.
static int surely(Caller *c, Bound *bound, const u64 *at, u64 stream) {
    if (!fire(bound, at, stream)) return 0;
    if (!c->on_gpu || !PyErr_ExceptionMatches(c->trouble)) return -1;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace) PyException_SetTraceback(error, trace);
    PyObject *done = PyObject_CallOneArg(c->recover, error);
    Py_XDECREF(type), Py_XDECREF(error), Py_XDECREF(trace), Py_XDECREF(done);
    return done ? fire(bound, at, stream) : -1;
}

static PyObject *give_back(const Caller *c, PyObject *const *array) {
    if (c->outputs == 1) return Py_NewRef(array[c->output[0]]);
    PyObject *results = PyTuple_New(c->outputs);
    for (int i = 0; results && i < c->outputs; i++) PyTuple_SET_ITEM(results, i, Py_NewRef(array[c->output[i]]));
    return results;
}

static PyObject *caller_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
    Caller *c = (Caller *)self;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (!c->first) return PyErr_SetString(PyExc_RuntimeError, "it is not set up"), NULL;
    Given given;
    Key key;
    Seen seen = {0};
    u64 at[MOST_TENSORS], packed[MOST_TENSORS], stream, bits = 0;
    int first, made = 0, used = 0;
    if (!sort_arguments(c, args, count, names, &given) || !read_call(c, &given, &key, at, &first, &stream))
        return by_python(c, c->otherwise, args, count, names);
    u64 hash = hashed(&key);
    Kind *kind = met_before(c, &key, hash);
    if (!kind) return first_call(c, args, count, names, &given, &key, hash);
    kind->holders++;  // others may forget it meanwhile
    PyObject *result = NULL;
    for (; made < kind->makers; made++) {
        int place = kind->maker[made].place;
        PyObject *one = make_result(&kind->maker[made], given.array[first]);
        key.count = 0;
        if (!one || !read_array(one, &key, &seen)) {
            if (one) PyErr_SetString(PyExc_SystemError, "a result that was made cannot be read");
            Py_XDECREF(one);
            goto done;
        }
        given.array[place] = one, at[place] = seen.address;
    }
    for (int i = 0; i < c->tensors; i++)
        if (given.array[i]) bits |= at[i] & c->mask[i], packed[used++] = at[i];
    if (bits) {
        result = by_python(c, c->otherwise, args, count, names);  // which says what is not aligned
    } else if (!surely(c, kind->bound, packed, stream)) {
        result = give_back(c, given.array);
    }
done:
    for (int i = 0; i < made; i++) Py_DECREF(given.array[kind->maker[i].place]);
    let_go(kind);
    return result;
}

// --- the type ---------------------------------------------------------------------------------------------------------

static PyObject *caller_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    Caller *c = (Caller *)type->tp_alloc(type, 0);
    if (c) c->vectorcall = caller_call;
    return (PyObject *)c;
}

static int take_places(PyObject *from, int *places, int most) {
    EACH(from, i) {
        places[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(from, i));
        if (PyErr_Occurred()) return -1;
        if (places[i] < 0 || places[i] >= most) return PyErr_SetString(PyExc_ValueError, "no such place"), -1;
    }
    return (int)PyTuple_GET_SIZE(from);
}

// set_up(names, scalars, needed, written, multiples, first, otherwise, by_stream, gpu); loaded.py says what these are.
static PyObject *set_up(PyObject *self, PyObject *args) {
    Caller *c = (Caller *)self;
    PyObject *names, *scalars, *needed, *written, *multiples, *first, *otherwise, *gpu, *t = (PyObject *)&PyTuple_Type;
    int by_stream;
    if (c->first) return PyErr_SetString(PyExc_RuntimeError, "it is set up"), NULL;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!OOpO", t, &names, t, &scalars, t, &needed, t, &written, t, &multiples,
                          &first, &otherwise, &by_stream, &gpu))
        return NULL;
    Py_ssize_t tensors = PyTuple_GET_SIZE(names);
    if (tensors > MOST_TENSORS || PyTuple_GET_SIZE(scalars) > MOST_SCALARS || PyTuple_GET_SIZE(multiples) != tensors ||
        PyTuple_GET_SIZE(needed) > tensors || PyTuple_GET_SIZE(written) > tensors)
        return PyErr_SetString(PyExc_ValueError, "more arguments than a call can have"), NULL;
    EACH(multiples, i) {
        u64 multiple = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(multiples, i));
        if (PyErr_Occurred()) return NULL;
        if (!multiple || multiple & (multiple - 1)) return PyErr_SetString(PyExc_ValueError, "no power of two"), NULL;
        c->mask[i] = multiple - 1;
    }
    c->tensors = (int)tensors;
    c->needed = take_places(needed, c->position, c->tensors);
    c->outputs = take_places(written, c->output, c->tensors);
    if (c->needed < 0 || c->outputs < 0) return NULL;
    if (gpu != Py_None) {
        PyObject *of, *trouble, *recover;
        if (!PyArg_ParseTuple(gpu, "OOO", &of, &trouble, &recover)) return NULL;
        c->stream_of = Py_NewRef(of), c->trouble = Py_NewRef(trouble), c->recover = Py_NewRef(recover);
        c->on_gpu = true;
    }
    c->by_stream = by_stream;
    c->names = Py_NewRef(names), c->scalars = Py_NewRef(scalars);
    c->first = Py_NewRef(first), c->otherwise = Py_NewRef(otherwise);
    return Py_NewRef(Py_None);
}

static PyObject *forget(PyObject *self, PyObject *nothing) {
    forget_all((Caller *)self);
    return Py_NewRef(Py_None);
}

static int caller_traverse(PyObject *self, visitproc visit, void *arg) {
    Caller *c = (Caller *)self;
    for (int i = 0; i < HEADS; i++)
        for (Kind *k = c->heads[i]; k; k = k->next) {
            Py_VISIT(k->bound);
            Py_VISIT(k->named);
            for (int j = 0; j < k->makers; j++) Py_VISIT(k->maker[j].make);
        }
    Py_VISIT(c->first);
    Py_VISIT(c->otherwise);
    Py_VISIT(c->stream_of);
    Py_VISIT(c->trouble);
    Py_VISIT(c->recover);
    return 0;
}

static int caller_clear(PyObject *self) {
    forget_all((Caller *)self);
    return 0;
}

static void caller_dealloc(PyObject *self) {
    Caller *c = (Caller *)self;
    PyObject_GC_UnTrack(self);
    forget_all(c);
    Py_XDECREF(c->names), Py_XDECREF(c->scalars), Py_XDECREF(c->first), Py_XDECREF(c->otherwise);
    Py_XDECREF(c->stream_of), Py_XDECREF(c->trouble), Py_XDECREF(c->recover);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef caller_methods[] = {
    {"_set_up", set_up, METH_VARARGS, NULL}, {"_forget", forget, METH_NOARGS, NULL}, {NULL}};

static PyTypeObject CallerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "deepgen_calls.Caller",
    .tp_basicsize = sizeof(Caller),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = caller_new,
    .tp_dealloc = caller_dealloc,
    .tp_traverse = caller_traverse,
    .tp_clear = caller_clear,
    .tp_methods = caller_methods,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Caller, vectorcall),
};

// Before Python 3.12 a class of Python's does not inherit the quick way to be called.
static PyObject *quick(PyObject *module, PyObject *of) {
    PyTypeObject *type = (PyTypeObject *)of;
    if (!PyType_Check(of) || !PyType_IsSubtype(type, &CallerType) || type->tp_call != PyVectorcall_Call)
        return PyErr_SetString(PyExc_TypeError, "a class of callers that is called as they are"), NULL;
    type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    return Py_NewRef(of);
}

static PyMethodDef functions[] = {{"quick", quick, METH_O, NULL}, {NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "deepgen_calls", NULL, -1, functions};

PyMODINIT_FUNC PyInit_deepgen_calls(void) {
    import_array();
    struct {
        PyObject **name;
        const char *text;
    } names[] = {{&name_out, "out"},           {&name_stream, "stream"},     {&name_fire, "fire"},
                 {&name_makers, "makers"},     {&name_dlpack, "__dlpack__"}, {&name_data_ptr, "data_ptr"},
                 {&name_interface, "__cuda_array_interface__"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].name = PyUnicode_InternFromString(names[i].text))) return NULL;
    PyObject *module = PyModule_Create(&definition);
#ifdef SOURCES  // in a wheel: what it was built from
    if (module && PyModule_AddStringConstant(module, "sources", SOURCES)) return NULL;
#endif
    if (!module || PyModule_AddType(module, &BoundType) || PyModule_AddType(module, &CallerType)) return NULL;
    PyObject *fire = PyCapsule_New((void *)fire_unlocked, "deepgen.fire", NULL);  // for extensions in C++
    bool right = fire && !PyModule_AddObjectRef(module, "fire", fire);
    Py_XDECREF(fire);
    return right ? module : NULL;
}
