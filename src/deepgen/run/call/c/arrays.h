// Arrays of numpy, torch and whatever has DLPack, as numbers: all that a call depends on but the address, and that.
#pragma once
#include "bound.h"
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

enum { MOST_DIMENSIONS = 8, MOST_WORDS = MOST_TENSORS * (2 * MOST_DIMENSIONS + 4) + 64 };

// DLPack's own, with its names.
typedef struct {
    int32_t type, id;
} DLDevice;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    uint32_t major, minor;
    void *previous, *allocator, *managed_from, *managed_to;
    int (*tensor_from)(void *object, DLTensor *out);  // looks at an object, which keeps everything
    int (*current_stream)(int device_type, int32_t device_id, void **stream);
} DLExchange;

enum { OF_CUDA = 2, OF_ROCM = 10 };

// How arrays of a type are read. Types are few: what was found of one that can be read is kept.
typedef enum { NUMPY, TORCH, DLPACK, UNREADABLE } Library;

typedef struct {
    PyTypeObject *type;
    Library library;
    const DLExchange *exchange;
} Known;

enum { MOST_TYPES = 16 };
static Known known[MOST_TYPES];
static int types_known;
static PyObject *name_dlpack, *name_data_ptr, *name_interface;

typedef struct {
    u64 words[MOST_WORDS];
    int count;
} Key;

typedef struct {
    u64 address;
    Library library;
    const DLExchange *exchange;
    DLDevice device;
} Seen;

static PyObject *attribute(const char *module, const char *name) {
    PyObject *modules = PyImport_GetModuleDict(), *of = PyDict_GetItemString(modules, module);
    PyObject *value = of ? PyObject_GetAttrString(of, name) : NULL;
    if (!value) PyErr_Clear();
    return value;
}

static bool is_attribute(PyTypeObject *type, const char *module, const char *name) {
    PyObject *value = attribute(module, name);
    Py_XDECREF(value);
    return value == (PyObject *)type;
}

// Subclasses may mean anything by their shape: Python asks them.
static Known examined(PyTypeObject *type) {
    Known k = {type, UNREADABLE, NULL};
    if (is_attribute(type, "torch", "Tensor") || is_attribute(type, "torch.nn.parameter", "Parameter")) {
        PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
        k.exchange = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
        if (k.exchange && k.exchange->major == 1 && k.exchange->tensor_from && k.exchange->current_stream)
            k.library = TORCH;
        Py_XDECREF(capsule);
    } else if (!PyType_IsSubtype(type, &PyArray_Type) && PyObject_HasAttr((PyObject *)type, name_dlpack)) {
        k.library = DLPACK;
    }
    PyErr_Clear();
    return k;
}

static Known how_to_read(PyTypeObject *type) {
    for (int i = 0; i < types_known; i++)
        if (known[i].type == type) return known[i];
    Known k = examined(type);
    if (k.library != UNREADABLE && types_known < MOST_TYPES) {
        Py_INCREF(type);
        known[types_known++] = k;
    }
    return k;
}

static inline void put(Key *key, u64 word) { key->words[key->count++] = word; }

static bool read_tensor(const DLTensor *t, Library library, Key *key, Seen *seen) {
    if (t->ndim < 0 || t->ndim > MOST_DIMENSIONS) return false;
    put(key, (u64)library | (u64)t->ndim << 8 | (u64)(t->strides != NULL) << 16 | (u64)t->dtype.code << 24 |
                 (u64)t->dtype.bits << 32 | (u64)t->dtype.lanes << 40);
    put(key, (u64)(uint32_t)t->device.type << 32 | (uint32_t)t->device.id);
    for (int i = 0; i < t->ndim; i++) put(key, (u64)t->shape[i]);
    if (t->strides)
        for (int i = 0; i < t->ndim; i++) put(key, (u64)t->strides[i]);
    seen->address = (u64)(uintptr_t)t->data + t->byte_offset;
    seen->device = t->device;
    return true;
}

// 1: it has it; 0: it has not; -1: to be asked in Python.
static int has(PyObject *object, PyObject *name) {
    PyObject *value = NULL;
#if PY_VERSION_HEX >= 0x030d0000
    int result = PyObject_GetOptionalAttr(object, name, &value);
#else
    int result = _PyObject_LookupAttr(object, name, &value);
#endif
    Py_XDECREF(value);
    if (result < 0) PyErr_Clear();
    return result;
}

// The capsule is only looked at, as in arrays.py.
static bool read_capsule(PyObject *array, Key *key, Seen *seen) {
    if (has(array, name_data_ptr) || has(array, name_interface)) return false;
    PyObject *capsule = PyObject_CallMethodNoArgs(array, name_dlpack);
    const DLTensor *tensor = capsule ? PyCapsule_GetPointer(capsule, "dltensor") : NULL;
    bool read = tensor && read_tensor(tensor, DLPACK, key, seen);
    put(key, (u64)(uintptr_t)Py_TYPE(array));  // whose library makes results
    Py_XDECREF(capsule);
    if (!read) PyErr_Clear();
    return read;
}

// False: Python is to look at it. No exception is set.
static bool read_array(PyObject *array, Key *key, Seen *seen) {
    if (Py_TYPE(array) == &PyArray_Type) {
        PyArrayObject *a = (PyArrayObject *)array;
        int count = PyArray_NDIM(a);
        if (count > MOST_DIMENSIONS) return false;
        put(key, NUMPY | (u64)count << 8 | (u64)PyArray_ISWRITEABLE(a) << 16);
        put(key, (u64)(uintptr_t)PyArray_DESCR(a));
        for (int i = 0; i < count; i++) put(key, (u64)PyArray_DIM(a, i));
        for (int i = 0; i < count; i++) put(key, (u64)PyArray_STRIDE(a, i));
        seen->address = (u64)(uintptr_t)PyArray_DATA(a), seen->library = NUMPY;
        return true;
    }
    Known k = how_to_read(Py_TYPE(array));
    seen->library = k.library, seen->exchange = k.exchange;
    if (k.library == DLPACK) return read_capsule(array, key, seen);
    DLTensor tensor;
    if (k.library != TORCH) return false;
    if (!k.exchange->tensor_from(array, &tensor)) return read_tensor(&tensor, TORCH, key, seen);
    PyErr_Clear();
    return false;
}

// Keeps alive what a key names by its address, so that nothing else can come to lie there.
static int keep_named(PyObject *list, PyObject *array) {
    PyObject *named = PyArray_CheckExact(array) ? (PyObject *)PyArray_DESCR((PyArrayObject *)array)
                                                 : (PyObject *)Py_TYPE(array);
    return PyList_Append(list, named);
}
