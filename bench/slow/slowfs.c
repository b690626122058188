/* A read-only view of a directory that is as slow as a shared file system; mount.py starts it.
 *
 * usage: slowfs SOURCE MOUNTPOINT OPEN_SECONDS STAT_SECONDS BYTES_PER_SECOND
 *
 * Each open waits OPEN_SECONDS, and each look-up and stat that the kernel does not answer from its
 * cache waits STAT_SECONDS; these waits overlap, any number of them. All reads share
 * BYTES_PER_SECOND, first come, first served. The kernel keeps names and attributes for
 * CACHE_SECONDS, and content only while a file is open, so every open reads from here.
 *
 * No thread waits for a request: one thread takes requests, and another answers those whose time
 * has come, once in a millisecond, so that a file costs some 50 us of CPU however many wait.
 * SOURCE has to be on a fast disk, best in the page cache, and must not be changed meanwhile.
 * Memory is taken to be there: where it is not, the kernel ends a process, and malloc never fails.
 *
 * libfuse before 3.17 does not tell the kernel that look-ups in one directory may overlap: with
 * STAT_SECONDS they come one after the other there, the first time.
 *
 * Files are found by name: a directory cannot be listed. Links are shown as what they lead to. The
 * extended attribute user.slowfs of the root has the counts as JSON.
 */

#define _GNU_SOURCE
#define FUSE_USE_VERSION 34

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <search.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/queue.h>
#include <time.h>
#include <unistd.h>

#define ATTRIBUTE "user.slowfs"
#define CACHE_SECONDS 60.0 /* for which the kernel knows names and attributes */
#define TICK_SECONDS 0.001 /* to answer each request at its own time costs twice the CPU */

/* A name that the kernel knows; kept until the end, since a benchmark is short. */
struct node {
    char *path; /* below the source */
    off_t size_bytes;
};

/* A request that waits for its time. */
struct job {
    TAILQ_ENTRY(job) place;
    void (*answer)(struct job *);
    double due_seconds;
    fuse_req_t request;
    struct node *node;
    struct fuse_file_info file;
    size_t size_bytes;
    off_t offset;
};

static int source_fd;
static double open_seconds, stat_seconds, bytes_per_second;
static struct node root = {.path = "."};
static void *nodes; /* a tree by path; only the thread that takes requests uses it */

/* In the order in which they are due. */
static TAILQ_HEAD(jobs, job) queue = TAILQ_HEAD_INITIALIZER(queue);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t earlier; /* another one is the first that is due */
static double busy_until_seconds;
static unsigned long opens, bytes_read;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static struct node *node_of(fuse_ino_t number)
{
    return number == FUSE_ROOT_ID ? &root : (struct node *)number;
}

static int by_path(const void *one, const void *other)
{
    return strcmp(((const struct node *)one)->path, ((const struct node *)other)->path);
}

/* ---- answers ---------------------------------------------------------------------------- */

static int look(struct node *node, struct stat *found)
{
    if (fstatat(source_fd, node->path, found, 0))
        return errno;
    node->size_bytes = found->st_size;
    return 0;
}

static void answer_lookup(struct job *job)
{
    struct fuse_entry_param entry = {.entry_timeout = CACHE_SECONDS, .attr_timeout = CACHE_SECONDS};
    int error = look(job->node, &entry.attr);
    entry.ino = (fuse_ino_t)job->node;
    if (error)
        fuse_reply_err(job->request, error);
    else
        fuse_reply_entry(job->request, &entry);
}

static void answer_getattr(struct job *job)
{
    struct stat found;
    int error = look(job->node, &found);
    if (error)
        fuse_reply_err(job->request, error);
    else
        fuse_reply_attr(job->request, &found, CACHE_SECONDS);
}

static void answer_open(struct job *job)
{
    int fd = openat(source_fd, job->node->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fuse_reply_err(job->request, errno);
        return;
    }
    __atomic_add_fetch(&opens, 1, __ATOMIC_RELAXED);
    job->file.fh = fd;
    if (fuse_reply_open(job->request, &job->file))
        close(fd); /* the process that asked has been killed meanwhile */
}

static void answer_read(struct job *job)
{
    struct fuse_bufvec buffer = FUSE_BUFVEC_INIT(job->size_bytes);
    buffer.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
    buffer.buf[0].fd = job->file.fh;
    buffer.buf[0].pos = job->offset;
    fuse_reply_data(job->request, &buffer, FUSE_BUF_NO_SPLICE);
}

/* ---- waiting ---------------------------------------------------------------------------- */

static void *answer_all(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&mutex);
    for (;;) {
        struct job *job = TAILQ_FIRST(&queue);
        if (!job) {
            pthread_cond_wait(&earlier, &mutex);
        } else if (job->due_seconds > now()) {
            struct timespec until = {.tv_sec = (time_t)job->due_seconds};
            until.tv_nsec = (job->due_seconds - until.tv_sec) * 1e9;
            pthread_cond_timedwait(&earlier, &mutex, &until);
        } else {
            TAILQ_REMOVE(&queue, job, place);
            pthread_mutex_unlock(&mutex);
            job->answer(job);
            free(job);
            pthread_mutex_lock(&mutex);
        }
    }
    return NULL;
}

/* Answers the job at the tick nearest to when it is due: at once, or by the other thread. */
static void submit(struct job job, double due_seconds)
{
    due_seconds = (double)(long)(due_seconds / TICK_SECONDS + 0.5) * TICK_SECONDS;
    if (due_seconds <= now()) {
        job.answer(&job);
        return;
    }
    struct job *kept = malloc(sizeof *kept);
    *kept = job;
    kept->due_seconds = due_seconds;
    pthread_mutex_lock(&mutex);
    struct job *before = TAILQ_LAST(&queue, jobs); /* most are due after all others */
    while (before && before->due_seconds > due_seconds)
        before = TAILQ_PREV(before, jobs, place);
    if (before) {
        TAILQ_INSERT_AFTER(&queue, before, kept, place);
    } else {
        TAILQ_INSERT_HEAD(&queue, kept, place);
        pthread_cond_signal(&earlier);
    }
    pthread_mutex_unlock(&mutex);
}

/* ---- requests --------------------------------------------------------------------------- */

static void on_init(void *unused, struct fuse_conn_info *connection)
{
    (void)unused;
    /* Reads ahead count as background requests, of which there may be 12 at a time otherwise. */
    connection->max_background = 4096;
    connection->congestion_threshold = 4096;
    connection->want |= connection->capable & FUSE_CAP_PARALLEL_DIROPS;
}

static void on_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    struct node *node = calloc(1, sizeof *node);
    if (asprintf(&node->path, "%s/%s", node_of(parent)->path, name) < 0)
        abort();
    struct node **known = tsearch(node, &nodes, by_path);
    if (*known != node) {
        free(node->path);
        free(node);
    }
    struct job job = {.answer = answer_lookup, .request = request, .node = *known};
    submit(job, stat_seconds > 0 ? now() + stat_seconds : 0);
}

static void on_getattr(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *unused)
{
    (void)unused;
    struct job job = {.answer = answer_getattr, .request = request, .node = node_of(number)};
    submit(job, stat_seconds > 0 && number != FUSE_ROOT_ID ? now() + stat_seconds : 0);
}

static void on_open(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file)
{
    struct job job = {.answer = answer_open, .request = request, .node = node_of(number)};
    job.file = *file;
    submit(job, open_seconds > 0 ? now() + open_seconds : 0);
}

static void on_read(
    fuse_req_t request, fuse_ino_t number, size_t size, off_t offset, struct fuse_file_info *file
)
{
    struct job job = {.answer = answer_read, .request = request, .node = node_of(number)};
    job.file = *file;
    job.size_bytes = size;
    job.offset = offset;
    off_t left = job.node->size_bytes > offset ? job.node->size_bytes - offset : 0;
    double charged = (off_t)size < left ? (double)size : (double)left;
    double time = now();
    if (busy_until_seconds < time)
        busy_until_seconds = time;
    busy_until_seconds += charged / bytes_per_second; /* only this thread uses it */
    __atomic_add_fetch(&bytes_read, (unsigned long)charged, __ATOMIC_RELAXED);
    submit(job, busy_until_seconds);
}

static void on_release(fuse_req_t request, fuse_ino_t number, struct fuse_file_info *file)
{
    (void)number;
    close(file->fh);
    fuse_reply_err(request, 0);
}

static void on_getxattr(fuse_req_t request, fuse_ino_t number, const char *name, size_t size)
{
    char text[256];
    if (number != FUSE_ROOT_ID || strcmp(name, ATTRIBUTE)) {
        fuse_reply_err(request, ENODATA);
        return;
    }
    int length = snprintf(
        text, sizeof text, "{\"store_opens\": %lu, \"store_bytes\": %lu}",
        __atomic_load_n(&opens, __ATOMIC_RELAXED), __atomic_load_n(&bytes_read, __ATOMIC_RELAXED)
    );
    if (size == 0)
        fuse_reply_xattr(request, length);
    else if (size < (size_t)length)
        fuse_reply_err(request, ERANGE);
    else
        fuse_reply_buf(request, text, length);
}

static const struct fuse_lowlevel_ops operations = {
    .init = on_init, .lookup = on_lookup, .getattr = on_getattr, .open = on_open,
    .read = on_read, .release = on_release, .getxattr = on_getxattr,
};

/* ---- start ------------------------------------------------------------------------------ */

static void *take_all(void *session)
{
    fuse_session_loop(session);
    kill(getpid(), SIGTERM); /* it was unmounted by another program */
    return NULL;
}

static int start_threads(struct fuse_session *session)
{
    pthread_condattr_t attributes;
    pthread_t thread;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&earlier, &attributes);
    return pthread_create(&thread, NULL, answer_all, NULL) ||
        pthread_create(&thread, NULL, take_all, session);
}

int main(int count, char *arguments[])
{
    if (count != 6)
        return 2;
    open_seconds = atof(arguments[3]);
    stat_seconds = atof(arguments[4]);
    bytes_per_second = atof(arguments[5]);
    source_fd = open(arguments[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (source_fd < 0) {
        perror(arguments[1]);
        return 1;
    }
    prctl(PR_SET_NAME, "slowfs"); /* whatever the program is called */
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* no mount outlives the benchmark */
    char *words[] = {"slowfs", "-oro,fsname=slowfs,subtype=slowfs"};
    struct fuse_args options = FUSE_ARGS_INIT(2, words);
    struct fuse_session *session =
        fuse_session_new(&options, &operations, sizeof operations, NULL);
    if (!session || fuse_session_mount(session, arguments[2]))
        return 1; /* libfuse has said why */
    /* This thread waits for the end: a handler could come just before a read that blocks. */
    sigset_t ends;
    int signal;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    int error = start_threads(session);
    if (!error) {
        puts("mounted");
        fflush(stdout);
        sigwait(&ends, &signal);
    }
    /* From here on libfuse would say that the other threads lost their descriptor. */
    if (!freopen("/dev/null", "w", stderr))
        return 1;
    fuse_session_unmount(session);
    _exit(error != 0);
}
