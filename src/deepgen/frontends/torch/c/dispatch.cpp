// Operators of torch's dispatcher, by a library's kernels: what calls on CPU tensors reach below autograd, autocast,
// vmap and torch's modes.
//
// Kernels are registered at BackendSelect, the last key above the backends, which every call passes: torch's own kernel
// is reached by a redispatch, whoever registered it. A thread keeps a table from a call's key (operator, sizes, strides,
// formats, numbers) to a bound kernel or to "torch's own". A key that was not met is decided in Python.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "call.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_int_mm_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/mm_ops.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

constexpr int MOST_DIMENSIONS = 8;
constexpr size_t MOST_KINDS = 1000;  // of a thread: where shapes never repeat, a look would cost more than kernels gain

// --- what serves them -------------------------------------------------------------------------------------------------

// Runs a bound kernel without Python's lock; 1 where it needs Python (run/call/c/bound.h).
int (*fire)(PyObject *bound, const u64 *at, u64 stream);

// A kernel that is bound for one kind of call on one thread.
struct Entry {
    PyObject *bound = nullptr;
    u64 *served = nullptr, mask = 0;
    int places[MOST_TENSORS], reads = 0;
    std::vector<int64_t> shape, strides;
    bool sums = false;  // the result has i32, otherwise what the first tensor has
    bool failed = false;
};

struct Kind {
    std::vector<u64> words;
    Entry *entry;  // nullptr: torch's own
};

struct Same {
    size_t operator()(u64 hash) const { return hash; }
};

struct Thread {
    std::atomic<bool> inside{false};  // it may be at work with what belongs to a library
    u64 library = 0;                  // whose kinds are in the table
    std::unordered_multimap<u64, Kind, Same> kinds;
    std::vector<PyObject *> kept;  // that entries belong to; Python's lock is held where it is touched
    int aside = 0;  // more than 0: all calls are torch's
    bool timed = false;
    Entry *forced = nullptr;  // while timed: what serves, or nullptr for torch
};

// Never destroyed, as threads may outlive what ends the process.
std::mutex &lock = *new std::mutex;
std::vector<Thread *> &threads = *new std::vector<Thread *>;
std::vector<PyObject *> &left = *new std::vector<PyObject *>;  // of threads that ended, until Python's lock is held
std::atomic<u64> in_use{0};                                    // the number of the library in use; 0: none
PyObject *decide = nullptr;  // from an operator's name and its arguments to what holds an entry, or None

void free_left() {
    std::vector<PyObject *> gone;
    {
        std::lock_guard<std::mutex> hold(lock);
        gone.swap(left);
    }
    for (PyObject *one : gone) Py_DECREF(one);
}

thread_local Thread *own = nullptr;
struct Leaving {
    ~Leaving() {
        if (!own) return;
        std::lock_guard<std::mutex> hold(lock);
        std::erase(threads, own);
        left.insert(left.end(), own->kept.begin(), own->kept.end());
        delete own;
        own = nullptr;
    }
};

Thread &this_thread() {
    if (!own) {
        static thread_local Leaving leaving;
        (void)leaving;
        own = new Thread;
        std::lock_guard<std::mutex> hold(lock);
        threads.push_back(own);
    }
    return *own;
}

// While one exists, nobody takes away what belongs to a library. Who closes it says so first and then looks for these.
struct Inside {
    Thread &thread;
    explicit Inside(Thread &thread) : thread(thread) { thread.inside.store(true); }
    ~Inside() { thread.inside.store(false, std::memory_order_release); }
};

// A kernel that fails serves no more, and says so once.
void give_up(Entry &e) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : nullptr;
    if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "a kernel failed, and torch serves such calls from now on: %S",
                         text ? text : Py_None))
        PyErr_Clear();
    Py_XDECREF(text), Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
    e.failed = true;
}

bool fire_in_python(Entry &e, const u64 *at) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *addresses = PyTuple_New(e.reads + 1), *done = nullptr;
    for (int i = 0; addresses && i <= e.reads; i++) PyTuple_SET_ITEM(addresses, i, PyLong_FromUnsignedLongLong(at[i]));
    if (addresses && !PyErr_Occurred()) done = PyObject_CallFunction(e.bound, "Oi", addresses, 0);
    if (!done) give_up(e);
    Py_XDECREF(addresses), Py_XDECREF(done);
    PyGILState_Release(state);
    return done != nullptr;
}

// The result; undefined where torch is to serve.
Tensor served(Entry &e, const Call &c) {
    u64 at[MOST_TENSORS + 1], bits = 0;
    if (e.failed) return Tensor();
    for (int i = 0; i < e.reads; i++) bits |= at[i] = reinterpret_cast<u64>(c.tensor[e.places[i]]->const_data_ptr());
    if (bits & e.mask) return Tensor();
    at::ScalarType format = e.sums ? at::kInt : c.tensor[0]->scalar_type();
    at::TensorBase out = at::detail::empty_strided_cpu(e.shape, e.strides, format);
    at[e.reads] = reinterpret_cast<u64>(out.mutable_data_ptr());
    if ((at[e.reads] & e.mask) || (fire(e.bound, at, 0) && !fire_in_python(e, at))) return Tensor();
    std::atomic_ref<u64>(*e.served).fetch_add(1, std::memory_order_relaxed);
    return Tensor(std::move(out));
}

Tensor by(Entry *entry, Thread &me, u64 library, const Call &c) {
    if (!entry) return Tensor();
    Inside inside(me);
    return in_use.load() == library ? served(*entry, c) : Tensor();
}

Entry *entry_of(PyObject *capsule) { return static_cast<Entry *>(PyCapsule_GetPointer(capsule, "deepgen.entry")); }

// Has Python decide on a kind of call, and keeps that for this thread. False: a library that is no longer in use.
bool met(Thread &me, u64 library, const Call &c, const char *name, PyObject *(*arguments)(const void *), const void *of,
         Entry **entry) {
    *entry = nullptr;
    if (!Py_IsInitialized()) return false;
    PyGILState_STATE state = PyGILState_Ensure();
    free_left();
    bool current = in_use.load() == library && decide;
    if (current) {
        me.aside++;
        PyObject *ask = Py_NewRef(decide), *args = arguments(of);
        PyObject *holder = args ? PyObject_CallFunction(ask, "sO", name, args) : nullptr;
        me.aside--;
        if (!holder && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt))
            PyErr_Clear(), PyErr_SetInterrupt();  // raised once torch's call is done
        else if (!holder)
            PyErr_WriteUnraisable(ask);
        Py_XDECREF(args), Py_DECREF(ask);
        current = in_use.load() == library;  // others may have left it meanwhile; Python's lock is held from here on
        if (current && holder && holder != Py_None) *entry = entry_of(holder), me.kept.push_back(Py_NewRef(holder));
        if (current) me.kinds.emplace(c.hash, Kind{{c.words, c.words + c.count}, *entry});
        Py_XDECREF(holder);
    }
    PyGILState_Release(state);
    return current;
}

template <class Arguments>
Tensor serve(const Call &c, const char *name, const Arguments &arguments) {
    Thread &me = this_thread();
    if (me.timed) return me.forced ? served(*me.forced, c) : Tensor();
    if (me.aside || !c.plain) return Tensor();
    u64 library = in_use.load();
    if (!library) return Tensor();
    if (me.library != library) me.kinds.clear(), me.library = library;
    auto [kind, end] = me.kinds.equal_range(c.hash);
    for (; kind != end; ++kind)
        if (kind->second.words.size() == static_cast<size_t>(c.count) &&
            !memcmp(kind->second.words.data(), c.words, sizeof(u64) * static_cast<size_t>(c.count)))
            return by(kind->second.entry, me, library, c);
    if (me.kinds.size() >= MOST_KINDS) return Tensor();
    Entry *entry;
    auto make = [](const void *of) { return (*static_cast<const Arguments *>(of))(); };
    return met(me, library, c, name, make, &arguments, &entry) ? by(entry, me, library, c) : Tensor();
}

// --- torch's operators ------------------------------------------------------------------------------------------------

constexpr DispatchKeySet BELOW(DispatchKeySet::FULL_AFTER, DispatchKey::BackendSelect);

template <class Operator, class Schema = typename Operator::schema>
struct Ours;

template <class Operator, class... A>
struct Ours<Operator, Tensor(A...)> {
    static Tensor call(DispatchKeySet keys, A... args) {
        if (!in_use.load(std::memory_order_relaxed)) return Operator::redispatch(keys & BELOW, args...);
        Call c(reinterpret_cast<u64>(&call));
        (c.add(args), ...);
        Tensor out = serve(c, Operator::name, [&] { return objects(args...); });
        return out.defined() ? out : Operator::redispatch(keys & BELOW, args...);
    }
};

template <class Operator>
c10::RegistrationHandleRAII registered() {
    return c10::Dispatcher::singleton().registerImpl(
        c10::OperatorName(Operator::name, Operator::overload_name), DispatchKey::BackendSelect,
        c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN((Ours<Operator>::call))), std::nullopt, nullptr, "deepgen");
}

struct Registrar {
    const char *name;
    c10::RegistrationHandleRAII (*make)();
    std::optional<c10::RegistrationHandleRAII> handle;
};

template <class Operator>
Registrar registrar() {
    return {Operator::name, &registered<Operator>, std::nullopt};
}

using namespace at::_ops;
Registrar (&OPERATORS)[6] = *new Registrar[1][6]{{registrar<mm>(), registrar<addmm>(), registrar<bmm>(), registrar<_int_mm>(),
                                                  registrar<_softmax>(), registrar<convolution>()}};

// --- for Python -------------------------------------------------------------------------------------------------------

// open(names, decide, fire): calls of these operators are decided by `decide` from now on.
PyObject *open_library(PyObject *, PyObject *args) {
    static u64 last = 0;
    PyObject *names, *of, *core;
    if (!PyArg_ParseTuple(args, "OOO", &names, &of, &core)) return nullptr;
    if (in_use.load()) return PyErr_SetString(PyExc_RuntimeError, "a library is in use"), nullptr;
    if (!(fire = reinterpret_cast<decltype(fire)>(PyCapsule_GetPointer(core, "deepgen.fire")))) return nullptr;
    for (Registrar &one : OPERATORS) {
        PyObject *name = PyUnicode_FromString(one.name);
        int wanted = name ? PySequence_Contains(names, name) : -1;
        Py_XDECREF(name);
        if (wanted < 0) return nullptr;
        if (wanted && !one.handle) one.handle = one.make();
    }
    decide = Py_NewRef(of);
    in_use.store(++last);
    Py_RETURN_NONE;
}

// close(alone): torch's own again. While other threads call operators, torch's dispatcher cannot take kernels away.
PyObject *close_library(PyObject *, PyObject *alone) {
    in_use.store(0);
    if (PyObject_IsTrue(alone))
        for (Registrar &one : OPERATORS) one.handle.reset();
    bool waits = true;
    Py_BEGIN_ALLOW_THREADS;
    while (waits) {
        std::this_thread::yield();
        std::lock_guard<std::mutex> hold(lock);
        waits = std::any_of(threads.begin(), threads.end(), [](Thread *one) { return one->inside.load(); });
    }
    Py_END_ALLOW_THREADS;
    {
        std::lock_guard<std::mutex> hold(lock);
        for (Thread *one : threads) left.insert(left.end(), one->kept.begin(), one->kept.end()), one->kept.clear();
    }
    free_left();
    Py_CLEAR(decide);
    Py_RETURN_NONE;
}

void forget(PyObject *capsule) {
    Entry *e = entry_of(capsule);
    Py_XDECREF(e->bound);
    delete e;
}

// entry(bound, places, shape, strides, sums, align, served): `sums` whether the result has i32, `served` is the address of
// a count.
PyObject *make_entry(PyObject *, PyObject *args) {
    int sums;
    PyObject *bound, *places, *shape, *strides, *t = reinterpret_cast<PyObject *>(&PyTuple_Type);
    unsigned long long align, count;
    if (!PyArg_ParseTuple(args, "OO!O!O!pKK", &bound, t, &places, t, &shape, t, &strides, &sums, &align, &count)) return nullptr;
    Py_ssize_t dims = PyTuple_GET_SIZE(shape);
    if (PyTuple_GET_SIZE(places) > MOST_TENSORS || dims > MOST_DIMENSIONS || PyTuple_GET_SIZE(strides) != dims)
        return PyErr_SetString(PyExc_ValueError, "more than a call can have"), nullptr;
    auto *e = new Entry;
    e->sums = sums, e->bound = Py_NewRef(bound), e->mask = align - 1, e->served = reinterpret_cast<u64 *>(count);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); i++)
        e->places[e->reads++] = static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(places, i)));
    for (Py_ssize_t i = 0; i < dims; i++) {
        e->shape.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i)));
        e->strides.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(strides, i)));
    }
    PyObject *capsule = PyErr_Occurred() ? nullptr : PyCapsule_New(e, "deepgen.entry", forget);
    if (!capsule) Py_DECREF(e->bound), delete e;
    return capsule;
}

// within(entry, function, *args): a call of torch's function that the entry serves; None: torch's own kernel does.
PyObject *within(PyObject *, PyObject *const *args, Py_ssize_t count) {
    if (count < 2) return PyErr_SetString(PyExc_TypeError, "within(entry, function, *args)"), nullptr;
    Entry *entry = args[0] == Py_None ? nullptr : entry_of(args[0]);
    if (PyErr_Occurred()) return nullptr;
    Thread &me = this_thread();
    bool timed = me.timed;
    Entry *forced = me.forced;
    me.timed = true, me.forced = entry;
    PyObject *result = PyObject_Vectorcall(args[1], args + 2, static_cast<size_t>(count - 2), nullptr);
    me.timed = timed, me.forced = forced;
    return result;
}

// again(function): the same function of C's as another object, by which torch's compiler tells libraries apart.
PyObject *again(PyObject *, PyObject *of) {
    if (!PyCFunction_CheckExact(of)) return PyErr_SetString(PyExc_TypeError, "no function of C's"), nullptr;
    auto *f = reinterpret_cast<PyCFunctionObject *>(of);
    return PyCFunction_NewEx(f->m_ml, f->m_self, f->m_module);
}

// forked(): in the child of a fork no other thread is left.
PyObject *forked(PyObject *, PyObject *) {
    new (&lock) std::mutex;
    std::erase(threads, own);
    for (Thread *one : threads) left.insert(left.end(), one->kept.begin(), one->kept.end());
    threads.clear();
    if (own) threads.push_back(own), own->inside.store(false);
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {{"open", open_library, METH_VARARGS, nullptr},
                           {"close", close_library, METH_O, nullptr},
                           {"entry", make_entry, METH_VARARGS, nullptr},
                           {"within", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(within)), METH_FASTCALL, nullptr},
                           {"again", again, METH_O, nullptr},
                           {"forked", forked, METH_NOARGS, nullptr},
                           {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "deepgen_dispatch", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_deepgen_dispatch() { return PyModule_Create(&definition); }
