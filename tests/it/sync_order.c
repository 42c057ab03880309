/*
 * Preloaded into a daemon: appends a line to the file named by SYNC_ORDER for each change of a file and each successful sync.
 *
 *     write <path>   bytes or length of a file changed
 *     name <path>    a name was created in the directory
 *     sync <path>    the file, or the names in the directory, are durable
 *
 * A change is recorded before it is made, a sync after it, so everything recorded as synced is durable.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void put(const char *file, const char *line, size_t len)
{
    int fd = openat(AT_FDCWD, file, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0 || syscall(SYS_write, fd, line, len) != (long)len)
        abort();
    close(fd);
}

static void note(const char *act, const char *path)
{
    const char *log = getenv("SYNC_ORDER");
    char line[5000];
    if (log)
        put(log, line, snprintf(line, sizeof line, "%s %s\n", act, path));
}

static void note_fd(const char *act, int fd)
{
    char link[40], path[4097];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len < 0)
        return;
    path[len] = 0;
    note(act, path);
}

static void note_dir_of(const char *path)
{
    char copy[4097];
    snprintf(copy, sizeof copy, "%s", path);
    note("name", dirname(copy));
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fsync(int fd)
{
    int result = REAL(fsync)(fd);
    if (result == 0)
        note_fd("sync", fd);
    return result;
}

int fdatasync(int fd)
{
    int result = REAL(fdatasync)(fd);
    if (result == 0)
        note_fd("sync", fd);
    return result;
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at)
{
    note_fd("write", fd);
    return REAL(pwrite64)(fd, bytes, len, at);
}

int ftruncate64(int fd, off64_t len)
{
    note_fd("write", fd);
    return REAL(ftruncate64)(fd, len);
}

int open64(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    if ((flags & O_CREAT) && access(path, F_OK) != 0) {
        note_dir_of(path);
    }
    return REAL(open64)(path, flags, mode);
}

int mkdir(const char *path, mode_t mode)
{
    note_dir_of(path);
    return REAL(mkdir)(path, mode);
}

int rename(const char *from, const char *to)
{
    note_dir_of(to);
    return REAL(rename)(from, to);
}

ssize_t write(int fd, const void *bytes, size_t len)
{
    return REAL(write)(fd, bytes, len);
}

int unlink(const char *path)
{
    return REAL(unlink)(path);
}

int unlinkat(int dir, const char *path, int flags)
{
    return REAL(unlinkat)(dir, path, flags);
}
