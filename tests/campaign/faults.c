/* Faults of a disk, for a process that is started with this library in LD_PRELOAD.
 *
 * campaign_arm names a folder and the k-th call about a file in it: that call fails with an errno,
 * does half of its work, or kills the process. Calls are counted in the order in which they come.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, TRUNCATE = 2, SYNC = 4, RENAME = 8, READ = 16, OPEN = 32, MAP = 64 };
enum { SHORT = -1, KILL = -2, KILL_HALFWAY = -3 }; /* above 0: an errno */

static char folder[4096];
static size_t folder_length;
static unsigned kinds;
static long chosen, counted, counted_of[7];
static int action, lasting;

void campaign_arm(const char *path, unsigned mask, long k, int what, int again) {
    snprintf(folder, sizeof folder, "%s", path);
    folder_length = strlen(folder);
    counted = 0;
    memset(counted_of, 0, sizeof counted_of);
    chosen = k;
    action = what;
    lasting = again;
    __atomic_store_n(&kinds, mask, __ATOMIC_SEQ_CST);
}

void campaign_disarm(void) { __atomic_store_n(&kinds, 0, __ATOMIC_SEQ_CST); }

long campaign_calls(unsigned kind) { return counted_of[__builtin_ctz(kind)]; }

static int in_folder(const char *path) {
    return path && !strncmp(path, folder, folder_length) && path[folder_length] == '/';
}

/* What a call has to do: 0 nothing else than always, or an action; a process that is to die does. */
static int strikes(unsigned kind) {
    long number = __atomic_add_fetch(&counted, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&counted_of[__builtin_ctz(kind)], 1, __ATOMIC_SEQ_CST);
    if (!chosen || number < chosen || (number > chosen && !lasting)) return 0;
    if (action == KILL || (action == KILL_HALFWAY && !(kind & WRITE))) kill(getpid(), SIGKILL);
    if (action == SHORT && !(kind & (READ | WRITE))) return 0;
    return action;
}

static int about_path(unsigned kind, const char *path) {
    return (kinds & kind) && in_folder(path) ? strikes(kind) : 0;
}

static int about_file(unsigned kind, int fd) {
    char link[64], path[4200];
    int saved = errno;
    if (!(kinds & kind)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (length < 0) return 0;
    path[length] = 0;
    return in_folder(path) ? strikes(kind) : 0;
}

#define REAL(result, name, ...)                                        \
    static result (*real)(__VA_ARGS__);                                \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, name)
#define HALF(n) ((n) > 1 ? (n) / 2 : (n))
#define FAIL(value, action)                                            \
    do {                                                               \
        int what = (action);                                           \
        if (what > 0) { errno = what; return (value); }                \
    } while (0)

ssize_t write(int fd, const void *data, size_t n) {
    REAL(ssize_t, "write", int, const void *, size_t);
    int found = about_file(WRITE, fd);
    FAIL(-1, found);
    ssize_t done = real(fd, data, found ? HALF(n) : n);
    if (found == KILL_HALFWAY) kill(getpid(), SIGKILL);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int n) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    int found = about_file(WRITE, fd);
    FAIL(-1, found);
    ssize_t done = real(fd, parts, found ? HALF(n) : n);
    if (found == KILL_HALFWAY) kill(getpid(), SIGKILL);
    return done;
}

size_t fwrite(const void *data, size_t size, size_t n, FILE *file) {
    REAL(size_t, "fwrite", const void *, size_t, size_t, FILE *);
    int found = about_file(WRITE, fileno(file));
    FAIL(0, found);
    size_t done = real(data, size, n, file); /* a count below n is an error here */
    if (found == KILL_HALFWAY) kill(getpid(), SIGKILL);
    return done;
}

#define POSITIONED_WRITE(name, offset)                                 \
    ssize_t name(int fd, const void *data, size_t n, offset at) {      \
        REAL(ssize_t, #name, int, const void *, size_t, offset);       \
        int found = about_file(WRITE, fd);                             \
        FAIL(-1, found);                                               \
        ssize_t done = real(fd, data, found ? HALF(n) : n, at);        \
        if (found == KILL_HALFWAY) kill(getpid(), SIGKILL);            \
        return done;                                                   \
    }
POSITIONED_WRITE(pwrite, off_t)
POSITIONED_WRITE(pwrite64, off64_t)

ssize_t read(int fd, void *data, size_t n) {
    REAL(ssize_t, "read", int, void *, size_t);
    int found = about_file(READ, fd);
    FAIL(-1, found);
    return real(fd, data, found ? HALF(n) : n);
}

#define POSITIONED_READ(name, offset)                                  \
    ssize_t name(int fd, void *data, size_t n, offset at) {            \
        REAL(ssize_t, #name, int, void *, size_t, offset);             \
        int found = about_file(READ, fd);                              \
        FAIL(-1, found);                                               \
        return real(fd, data, found ? HALF(n) : n, at);                \
    }
POSITIONED_READ(pread, off_t)
POSITIONED_READ(pread64, off64_t)

#define VECTOR_READ(name, offset)                                                    \
    ssize_t name(int fd, const struct iovec *parts, int n, offset at, int flags) {   \
        REAL(ssize_t, #name, int, const struct iovec *, int, offset, int);           \
        int found = about_file(READ, fd);                                            \
        FAIL(-1, found);                                                             \
        struct iovec first = {parts[0].iov_base, HALF(parts[0].iov_len)};            \
        return found ? real(fd, &first, 1, at, flags) : real(fd, parts, n, at, flags); \
    }
VECTOR_READ(preadv2, off_t)
VECTOR_READ(preadv64v2, off64_t)

#define TRUNCATING(name, offset)                                       \
    int name(int fd, offset length) {                                  \
        REAL(int, #name, int, offset);                                 \
        FAIL(-1, about_file(TRUNCATE, fd));                            \
        return real(fd, length);                                       \
    }
TRUNCATING(ftruncate, off_t)
TRUNCATING(ftruncate64, off64_t)

#define SYNCING(name)                                                  \
    int name(int fd) {                                                 \
        REAL(int, #name, int);                                         \
        FAIL(-1, about_file(SYNC, fd));                                \
        return real(fd);                                               \
    }
SYNCING(fsync)
SYNCING(fdatasync)

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    FAIL(-1, about_path(RENAME, to));
    return real(from, to);
}

/* Folders by descriptor are not looked at: names are absolute here. */
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    FAIL(-1, about_path(RENAME, to));
    return real(from_folder, from, to_folder, to);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    REAL(int, "linkat", int, const char *, int, const char *, int);
    FAIL(-1, about_path(RENAME, to));
    return real(from_folder, from, to_folder, to, flags);
}

int link(const char *from, const char *to) {
    REAL(int, "link", const char *, const char *);
    FAIL(-1, about_path(RENAME, to));
    return real(from, to);
}

/* A folder is opened to be emptied or synced, which no disk refuses. */
static int about_opening(const char *path, int flags) {
    struct stat found;
    int saved = errno, folder = !stat(path, &found) && S_ISDIR(found.st_mode);
    errno = saved;
    return folder && (flags & O_TMPFILE) != O_TMPFILE ? 0 : about_path(OPEN, path);
}

#define OPENING(name)                                                  \
    int name(const char *path, int flags, ...) {                       \
        REAL(int, #name, const char *, int, ...);                      \
        mode_t mode = 0;                                               \
        if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {   \
            va_list rest;                                              \
            va_start(rest, flags);                                     \
            mode = va_arg(rest, mode_t);                               \
            va_end(rest);                                              \
        }                                                              \
        FAIL(-1, about_opening(path, flags));                          \
        return real(path, flags, mode);                                \
    }
OPENING(open)
OPENING(open64)

#define MAPPING(name, offset)                                                      \
    void *name(void *at, size_t n, int protection, int flags, int fd, offset from) { \
        REAL(void *, #name, void *, size_t, int, int, int, offset);                \
        if (fd >= 0) FAIL(MAP_FAILED, about_file(MAP, fd));                        \
        return real(at, n, protection, flags, fd, from);                           \
    }
MAPPING(mmap, off_t)
MAPPING(mmap64, off64_t)
