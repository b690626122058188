/* Splits images whose three channels lie side by side in each pixel into one plane for each.

That is what a slot has, and what NumPy's general copy of such a view takes twice as long for.
overlapiter/sharedmem/images.py says what the functions do. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* Processors with AVX2 split in a half to a fifth of the time; the C library chooses when it loads
this module, so that it runs on all others, too. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#endif
#endif
#ifndef FOR_EACH_PROCESSOR
#define FOR_EACH_PROCESSOR
#endif

/* The distance of two pixels is a constant where it may be, so that the compiler uses vectors. */
#define SPLIT_ROWS(type, distance)                                              \
    for (y = 0; y < height; y++) {                                              \
        const type *row = (const type *)(from + y * row_bytes);                 \
        type *restrict a = (type *)to + y * width;                              \
        type *restrict b = a + height * width, *restrict c = b + height * width; \
        for (x = 0; x < width; x++) {                                           \
            a[x] = row[x * (distance)];                                         \
            b[x] = row[x * (distance) + 1];                                     \
            c[x] = row[x * (distance) + 2];                                     \
        }                                                                       \
    }

#define DEFINE_SPLIT(type)                                                                 \
    FOR_EACH_PROCESSOR                                                                     \
    static void split_##type(char *to, const char *from, Py_ssize_t height, Py_ssize_t width, \
                             Py_ssize_t row_bytes, Py_ssize_t pixel_bytes)                 \
    {                                                                                      \
        const Py_ssize_t distance = pixel_bytes / (Py_ssize_t)sizeof(type);                \
        Py_ssize_t x, y;                                                                   \
        if (distance == 3)                                                                 \
            SPLIT_ROWS(type, 3)                                                            \
        else                                                                               \
            SPLIT_ROWS(type, distance)                                                     \
    }

DEFINE_SPLIT(uint8_t)
DEFINE_SPLIT(uint16_t)
DEFINE_SPLIT(uint32_t)
DEFINE_SPLIT(uint64_t)

/* --- as NumPy has arrays ------------------------------------------------------------------------*/

typedef struct {
    int two, n_axes;
    char kind;
    int item_bytes, flags;
    Py_intptr_t *shape, *strides;
    void *data;
} ArrayStruct;

#define IS_ALIGNED 0x100

static const ArrayStruct *struct_of(PyObject *array, PyObject **capsule)
{
    *capsule = PyObject_GetAttrString(array, "__array_struct__");
    return *capsule ? PyCapsule_GetPointer(*capsule, NULL) : NULL;
}

static int split_to(char *to, const ArrayStruct *image)
{
    void (*function)(char *, const char *, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t);
    switch (image->item_bytes) {
    case 1: function = split_uint8_t; break;
    case 2: function = split_uint16_t; break;
    case 4: function = split_uint32_t; break;
    case 8: function = split_uint64_t; break;
    default: return 0;
    }
    if (image->n_axes != 3 || image->shape[0] != 3 || image->strides[0] != image->item_bytes ||
        image->strides[1] % image->item_bytes || image->strides[2] % image->item_bytes ||
        !(image->flags & IS_ALIGNED))
        return 0;
    Py_BEGIN_ALLOW_THREADS
    function(to, image->data, image->shape[1], image->shape[2], image->strides[1],
             image->strides[2]);
    Py_END_ALLOW_THREADS
    return 1;
}

static PyObject *split(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *row, *image, *row_capsule, *image_capsule = NULL, *answer = NULL;
    const ArrayStruct *to, *from;
    if (!PyArg_ParseTuple(arguments, "OO", &row, &image))
        return NULL;
    if ((to = struct_of(row, &row_capsule)) && (from = struct_of(image, &image_capsule)))
        answer = PyBool_FromLong(split_to(to->data, from));
    Py_XDECREF(row_capsule);
    Py_XDECREF(image_capsule);
    return answer;
}

static PyObject *convert(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *row, *capsule;
    const ArrayStruct *to;
    Py_ssize_t from, n_pixels, i;
    if (!PyArg_ParseTuple(arguments, "Onn", &row, &from, &n_pixels))
        return NULL;
    if (!(to = struct_of(row, &capsule))) {
        Py_XDECREF(capsule);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    const uint32_t *pixels = (const uint32_t *)from; /* its lowest byte is the first channel */
    float *restrict a = to->data, *restrict b = a + n_pixels, *restrict c = b + n_pixels;
    for (i = 0; i < n_pixels; i++) {
        a[i] = (float)(int32_t)(pixels[i] & 255);
        b[i] = (float)(int32_t)(pixels[i] >> 8 & 255);
        c[i] = (float)(int32_t)(pixels[i] >> 16 & 255);
    }
    Py_END_ALLOW_THREADS
    Py_DECREF(capsule);
    Py_RETURN_NONE;
}

/* --- as Arrow's C data interface has them -------------------------------------------------------*/

typedef struct Schema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct Schema **children, *dictionary;
    void (*release)(struct Schema *);
    void *private_data;
} Schema;

typedef struct Array {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct Array **children, *dictionary;
    void (*release)(struct Array *);
    void *private_data;
} Array;

static PyObject *pixels_of(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *schema_capsule, *array_capsule;
    const Schema *schema;
    const Array *array, *bytes;
    const uint16_t is_little_endian = 1;
    if (!PyArg_ParseTuple(arguments, "OO", &schema_capsule, &array_capsule) ||
        !(schema = PyCapsule_GetPointer(schema_capsule, "arrow_schema")) ||
        !(array = PyCapsule_GetPointer(array_capsule, "arrow_array")))
        return NULL;
    if (!*(const char *)&is_little_endian || strcmp(schema->format, "+w:4") ||
        schema->n_children != 1 || strcmp(schema->children[0]->format, "C") ||
        array->n_children != 1 || array->offset || array->null_count)
        Py_RETURN_NONE;
    bytes = array->children[0];
    if (bytes->n_buffers != 2 || bytes->offset || bytes->null_count || !bytes->buffers[1])
        Py_RETURN_NONE;
    return Py_BuildValue("nn", (Py_ssize_t)bytes->buffers[1], (Py_ssize_t)array->length);
}

static PyMethodDef functions[] = {
    {"split", split, METH_VARARGS, NULL},
    {"convert", convert, METH_VARARGS, NULL},
    {"pixels_of", pixels_of, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {{0, NULL}};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_planes", NULL, 0, functions, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__planes(void)
{
    return PyModuleDef_Init(&module);
}
