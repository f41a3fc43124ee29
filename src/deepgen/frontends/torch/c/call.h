// A call of an operator of torch's as a key, by what a kernel depends on, and its arguments as objects of Python's.
#pragma once
#include <Python.h>

#include <ATen/core/Tensor.h>

#include <optional>

__attribute__((visibility("default"))) PyObject *THPVariable_Wrap(const at::TensorBase &var);  // of libtorch_python

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
typedef uint64_t u64;

constexpr int MOST_TENSORS = 3, MOST_WORDS = 96;
constexpr u64 BLOCK = 64;  // bytes: addresses that are no multiples of it are another kind of call

// Tensors of the CPU's with memory of their own, and nothing that changes what a call means.
const DispatchKeySet PLAIN = DispatchKeySet(DispatchKey::CPU) | DispatchKeySet(DispatchKey::AutogradCPU) |
                             DispatchKeySet(DispatchKey::AutocastCPU) | DispatchKeySet(DispatchKey::ADInplaceOrView);

struct Call {
    u64 words[MOST_WORDS], hash = 0x9e3779b97f4a7c15u;
    int count = 0, tensors = 0;
    bool plain = true;
    const Tensor *tensor[MOST_TENSORS];

    explicit Call(u64 of) { put(of); }

    void put(u64 word) {
        if (count == MOST_WORDS) return void(plain = false);
        words[count++] = word;
        hash = (hash ^ word) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }

    void add(const Tensor &t) {
        const c10::TensorImpl *of = t.unsafeGetTensorImpl();
        plain = plain && tensors < MOST_TENSORS && of->key_set().has(DispatchKey::CPU) &&
                !(of->key_set().raw_repr() & ~PLAIN.raw_repr());
        if (!plain) return;
        u64 crooked = reinterpret_cast<u64>(t.const_data_ptr()) % BLOCK != 0;
        put(static_cast<u64>(t.scalar_type()) << 16 | static_cast<u64>(t.dim()) << 8 | crooked);
        for (int64_t size : t.sizes()) put(static_cast<u64>(size));
        for (int64_t stride : t.strides()) put(static_cast<u64>(stride));
        tensor[tensors++] = &t;
    }
    void add(const std::optional<Tensor> &t) { t && t->defined() ? add(*t) : put(~u64(0)); }
    void add(const at::Scalar &number) {
        plain = plain && !number.isComplex() && !number.isSymbolic();
        if (!plain) return;
        double value = number.toDouble();
        u64 bits;
        memcpy(&bits, &value, sizeof bits);
        put(bits);
    }
    void add(int64_t number) { put(static_cast<u64>(number)); }
    void add(bool yes) { put(yes); }
    void add(const c10::SymInt &number) { number.is_heap_allocated() ? void(plain = false) : add(number.as_int_unchecked()); }
    void add(c10::SymIntArrayRef numbers) {
        put(numbers.size());
        for (const c10::SymInt &number : numbers) add(number);
    }
};

// The same for Python. Tensors are given without what the caller hangs on them: subclasses, gradients.
PyObject *object(const Tensor &t) { return THPVariable_Wrap(t.variable_data()); }
PyObject *object(const std::optional<Tensor> &t) { return t && t->defined() ? object(*t) : Py_NewRef(Py_None); }
PyObject *object(const at::Scalar &number) {
    return number.isIntegral(true) ? PyLong_FromLongLong(number.toLong()) : PyFloat_FromDouble(number.toDouble());
}
PyObject *object(int64_t number) { return PyLong_FromLongLong(number); }
PyObject *object(bool yes) { return PyBool_FromLong(yes); }
PyObject *object(const c10::SymInt &number) { return PyLong_FromLongLong(number.as_int_unchecked()); }
PyObject *object(c10::SymIntArrayRef numbers) {
    PyObject *all = PyList_New(static_cast<Py_ssize_t>(numbers.size()));
    for (size_t i = 0; all && i < numbers.size(); i++) PyList_SET_ITEM(all, static_cast<Py_ssize_t>(i), object(numbers[i]));
    return all;
}

template <class... A>
PyObject *objects(const A &...args) {
    PyObject *all[] = {object(args)...}, *tuple = PyTuple_New(sizeof...(A));
    bool right = tuple != nullptr;
    for (size_t i = 0; i < sizeof...(A); i++) {
        right = right && all[i];
        tuple ? PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), all[i]) : Py_XDECREF(all[i]);
    }
    if (!right) Py_CLEAR(tuple);
    return tuple;
}

}  // namespace
