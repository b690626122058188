/* Reads small files in many threads, none of which ever takes the interpreter's lock.

A file costs open, fstat, read, fstat and close, or a stat alone. In Python each of these calls hands the lock to
another thread, which costs more than the call. Here Python is entered once for many files: when all
those that were asked for together have been read, or when it asks for what there is.

overlapiter/origins/bulk.py says what the methods do. A pool lives as long as its process: its
threads may be waiting for a store that never answers. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES (256 << 10)

typedef struct {
    int n_left; /* reads that are to be done yet */
} Group;

typedef struct Read {
    struct Read *next;
    Group *group;
    PyObject *token;
    char *path; /* NULL if no file can have it */
    char *data; /* NULL unless all of the file was read, unchanged */
    int only_look;
    int error;
    int fd; /* of a file that is too large, else -1 */
    int64_t size, mtime_ns, began_ns, ended_ns;
} Read;

typedef struct {
    Read *first, **end;
} List;

typedef struct {
    PyObject_HEAD
    int64_t most_bytes;
    pthread_mutex_t lock; /* guards all that follows; no thread waits for a file while it has it */
    pthread_cond_t asked, answered;
    List waiting, done;
    int n_threads, n_wanted, n_idle, n_busy;
    int n_lent;   /* files that the caller reads: as many threads have to wait */
    int has_news; /* a group is complete, or a file was lent, since the last collect */
} Pool;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}

static void append(List *list, Read *read)
{
    read->next = NULL;
    *list->end = read;
    list->end = &read->next;
}

static Read *take_all(List *list)
{
    Read *first = list->first;
    list->first = NULL;
    list->end = &list->first;
    return first;
}

/* --- without the interpreter's lock ------------------------------------------------------------*/

static int open_at_once(const char *path)
{
    /* The other end of a FIFO is not waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == EWOULDBLOCK) /* another process has a lease, which this open ends */
        fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd;
}

static ssize_t read_some(int fd, char *data, size_t size)
{
    ssize_t n = read(fd, data, size);
    int flags;
    if (n >= 0 || (flags = fcntl(fd, F_GETFL)) < 0 || !(flags & O_NONBLOCK))
        return n;
    /* Some file systems need it, to fetch a file from tape. */
    if (fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0)
        return -1;
    return read(fd, data, size);
}

static void note(const struct stat *found, int64_t *size, int64_t *mtime_ns)
{
    *size = found->st_size;
    /* As origin.original_of has it: the last 64 bits count. */
    *mtime_ns = (int64_t)((uint64_t)found->st_mtim.tv_sec * 1000000000u + found->st_mtim.tv_nsec);
}

static int look(int fd, int64_t *size, int64_t *mtime_ns)
{
    struct stat found;
    if (fstat(fd, &found) < 0)
        return errno;
    if (!S_ISREG(found.st_mode))
        return S_ISDIR(found.st_mode) ? EISDIR : EINVAL;
    note(&found, size, mtime_ns);
    return 0;
}

static int fill(Read *read, int fd)
{
    int64_t n_bytes = 0, size = 0, mtime_ns = 0;
    int error;
    if (!(read->data = malloc(read->size)))
        return ENOMEM;
    while (n_bytes < read->size) {
        ssize_t n = read_some(fd, read->data + n_bytes, read->size - n_bytes);
        if (n < 0)
            return errno;
        if (n == 0)
            return EIO; /* it is shorter than it was */
        n_bytes += n;
    }
    if (!(error = look(fd, &size, &mtime_ns)) && (size != read->size || mtime_ns != read->mtime_ns)) {
        free(read->data); /* it is being written: not ours to keep */
        read->data = NULL;
    }
    return error;
}

static void read_file(Read *read, int64_t most_bytes)
{
    struct stat found;
    int fd;
    read->began_ns = now_ns();
    if (!read->path) {
        read->error = EINVAL;
    } else if (read->only_look) {
        if (stat(read->path, &found) < 0)
            read->error = errno;
        else
            note(&found, &read->size, &read->mtime_ns);
    } else if ((fd = open_at_once(read->path)) < 0) {
        read->error = errno;
    } else {
        read->error = look(fd, &read->size, &read->mtime_ns);
        if (!read->error && read->size > most_bytes) {
            read->fd = fd;
        } else {
            if (!read->error && read->size > 0)
                read->error = fill(read, fd);
            close(fd);
        }
    }
    if (read->error) {
        free(read->data);
        read->data = NULL;
    }
    read->ended_ns = now_ns();
}

static int may_begin(Pool *pool)
{
    return pool->waiting.first && pool->n_busy + pool->n_lent < pool->n_wanted;
}

static void *serve(void *argument)
{
    Pool *pool = argument;
    Read *read;
    int has_more;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!may_begin(pool) && pool->n_threads <= pool->n_wanted) {
            pool->n_idle++;
            pthread_cond_wait(&pool->asked, &pool->lock);
            pool->n_idle--;
        }
        if (pool->n_threads > pool->n_wanted)
            break;
        read = pool->waiting.first;
        if (!(pool->waiting.first = read->next))
            pool->waiting.end = &pool->waiting.first;
        pool->n_busy++;
        has_more = pool->n_idle && may_begin(pool);
        pthread_mutex_unlock(&pool->lock);
        if (has_more) /* not before: the thread that wakes up would have to wait for the lock */
            pthread_cond_signal(&pool->asked);
        read_file(read, pool->most_bytes);
        pthread_mutex_lock(&pool->lock);
        pool->n_busy--;
        append(&pool->done, read);
        if (read->fd >= 0)
            pool->n_lent++;
        if (!--read->group->n_left)
            free(read->group);
        else if (read->fd < 0)
            continue;
        pool->has_news = 1;
        pthread_cond_signal(&pool->answered);
    }
    pool->n_threads--;
    pthread_cond_signal(&pool->asked); /* what this one was woken for */
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static int start_thread(Pool *pool)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    int error;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all); /* signals are the interpreter's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, &attributes, serve, pool);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

/* --- with it -----------------------------------------------------------------------------------*/

static int pool_init(Pool *pool, PyObject *arguments, PyObject *keywords)
{
    long long most_bytes;
    if (!PyArg_ParseTuple(arguments, "L", &most_bytes))
        return -1;
    pool->most_bytes = most_bytes;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->asked, NULL);
    pthread_cond_init(&pool->answered, NULL);
    take_all(&pool->waiting);
    take_all(&pool->done);
    Py_INCREF((PyObject *)pool); /* for its threads, and for ever */
    return 0;
}

static PyObject *pool_resize(Pool *pool, PyObject *argument)
{
    long n_threads = PyLong_AsLong(argument), n_before;
    if (n_threads == -1 && PyErr_Occurred())
        return NULL;
    pthread_mutex_lock(&pool->lock);
    n_before = pool->n_wanted;
    pool->n_wanted = (int)n_threads;
    while (pool->n_threads < pool->n_wanted) {
        if (start_thread(pool)) {
            pool->n_wanted = (int)n_before; /* others need threads, too */
            break;
        }
        pool->n_threads++;
    }
    n_threads = pool->n_wanted;
    pthread_cond_broadcast(&pool->asked); /* so that those that are too many end */
    pthread_mutex_unlock(&pool->lock);
    return PyLong_FromLong(n_threads);
}

static Read *read_of(PyObject *item, Group *group, int only_look)
{
    PyObject *token, *name, *path = NULL;
    Read *read;
    if (!PyArg_ParseTuple(item, "OO", &token, &name))
        return NULL;
    if (!PyUnicode_FSConverter(name, &path)) {
        if (!PyErr_ExceptionMatches(PyExc_ValueError))
            return NULL;
        PyErr_Clear(); /* no file can have such a path */
    }
    if (!(read = calloc(1, sizeof *read)) ||
        (path && !(read->path = strdup(PyBytes_AsString(path))))) {
        Py_XDECREF(path);
        free(read);
        return (Read *)PyErr_NoMemory();
    }
    Py_XDECREF(path);
    Py_INCREF(token);
    read->token = token;
    read->group = group;
    read->only_look = only_look;
    read->fd = -1;
    return read;
}

static PyObject *pool_submit(Pool *pool, PyObject *arguments)
{
    PyObject *items;
    List reads;
    Read *read;
    Group *group;
    Py_ssize_t i, n;
    int only_look;
    if (!PyArg_ParseTuple(arguments, "Op", &items, &only_look) || (n = PyList_Size(items)) < 0)
        return NULL;
    if (n == 0)
        Py_RETURN_NONE;
    if (!(group = malloc(sizeof *group)))
        return PyErr_NoMemory();
    group->n_left = (int)n;
    take_all(&reads);
    for (i = 0; i < n; i++) {
        if (!(read = read_of(PyList_GetItem(items, i), group, only_look))) {
            while ((read = reads.first)) {
                reads.first = read->next;
                Py_DECREF(read->token);
                free(read->path);
                free(read);
            }
            free(group);
            return NULL;
        }
        append(&reads, read);
    }
    pthread_mutex_lock(&pool->lock);
    *pool->waiting.end = reads.first;
    pool->waiting.end = reads.end;
    pthread_cond_signal(&pool->asked);
    pthread_mutex_unlock(&pool->lock);
    Py_RETURN_NONE;
}

static PyObject *pool_give_back(Pool *pool, PyObject *Py_UNUSED(nothing))
{
    Py_BEGIN_ALLOW_THREADS /* the thread that is woken may have this one's core first */
    pthread_mutex_lock(&pool->lock);
    pool->n_lent--;
    pthread_cond_signal(&pool->asked);
    pthread_mutex_unlock(&pool->lock);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* What was read, as it lies in memory: `bytes` would be a copy. */
typedef struct {
    PyObject_HEAD
    char *data;
    Py_ssize_t size;
} Content;

static PyTypeObject *content_type; /* for ever, as the threads are */

static int content_lend(Content *content, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, (PyObject *)content, content->data, content->size, 1, flags);
}

static void content_dealloc(Content *content)
{
    PyTypeObject *type = Py_TYPE((PyObject *)content);
    free(content->data);
    PyObject_Free(content);
    Py_DECREF(type);
}

static PyType_Slot content_type_slots[] = {
    {Py_bf_getbuffer, content_lend},
    {Py_tp_dealloc, content_dealloc},
    {0, NULL},
};

static PyType_Spec content_spec = {
    "overlapiter.origins._bulk.Content", sizeof(Content), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, content_type_slots,
};

static PyObject *view_of(Read *read)
{
    PyObject *view;
    Content *content;
    if (!read->data)
        Py_RETURN_NONE;
    if (!(content = PyObject_New(Content, content_type)))
        return NULL;
    content->data = read->data;
    content->size = read->size;
    read->data = NULL; /* it is the content's now */
    view = PyMemoryView_FromObject((PyObject *)content);
    Py_DECREF(content);
    return view;
}

static PyObject *tuple_of(Read *read)
{
    PyObject *data = view_of(read);
    if (!data)
        return NULL;
    return Py_BuildValue("(OiiLLLLN)", read->token, read->error, read->fd, (long long)read->size,
                         (long long)read->mtime_ns, (long long)read->began_ns,
                         (long long)read->ended_ns, data);
}

static PyObject *pool_collect(Pool *pool, PyObject *argument)
{
    int is_patient = PyObject_IsTrue(argument), is_failed;
    PyObject *list, *item;
    Read *read, *next;
    if (is_patient < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&pool->lock);
    while (is_patient && !pool->has_news)
        pthread_cond_wait(&pool->answered, &pool->lock);
    read = take_all(&pool->done);
    if (is_patient)
        pool->has_news = 0;
    pthread_mutex_unlock(&pool->lock);
    Py_END_ALLOW_THREADS
    list = PyList_New(0);
    for (; read; read = next) {
        next = read->next;
        if (list) {
            is_failed = !(item = tuple_of(read)) || PyList_Append(list, item) < 0;
            Py_XDECREF(item);
            if (is_failed) /* no memory, of which this process ends */
                Py_CLEAR(list);
        }
        Py_DECREF(read->token);
        free(read->data);
        free(read->path);
        free(read);
    }
    return list;
}

static PyMethodDef pool_methods[] = {
    {"resize", (PyCFunction)pool_resize, METH_O, NULL},
    {"submit", (PyCFunction)pool_submit, METH_VARARGS, NULL},
    {"give_back", (PyCFunction)pool_give_back, METH_NOARGS, NULL},
    {"collect", (PyCFunction)pool_collect, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pool_slots[] = {
    {Py_tp_init, pool_init},
    {Py_tp_methods, pool_methods},
    {0, NULL},
};

static PyType_Spec pool_spec = {
    "overlapiter.origins._bulk.Pool", sizeof(Pool), 0, Py_TPFLAGS_DEFAULT, pool_slots,
};

static int fill_module(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&pool_spec);
    if (!type || !(content_type = (PyTypeObject *)PyType_FromSpec(&content_spec))) {
        Py_XDECREF(type);
        return -1;
    }
    if (PyModule_AddObject(module, "Pool", type) < 0) {
        Py_DECREF(type);
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill_module},
    {0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_bulk", NULL, 0, NULL, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__bulk(void)
{
    return PyModuleDef_Init(&module);
}
