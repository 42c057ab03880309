/*
 * Preloaded into a program: the disk cannot read the bytes BAD_FROM to BAD_TO of the file BAD_PATH. A read that begins before
 * them is short, as the kernel's. It cannot even open the file with the inode BAD_OPEN.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_bad_file(int fd)
{
    const char *wanted = getenv("BAD_PATH");
    char link[40], path[4097];
    if (!wanted)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len < 0)
        return 0;
    path[len] = 0;
    return strcmp(path, wanted) == 0;
}

/* The number of bytes that can be read from `at` on; -1 for none. */
static ssize_t readable(int fd, size_t len, off64_t at)
{
    if (!is_bad_file(fd))
        return len;
    off64_t from = atoll(getenv("BAD_FROM")), to = atoll(getenv("BAD_TO"));
    if (at >= to || at + (off64_t)len <= from)
        return len;
    if (at < from)
        return from - at;
    errno = EIO;
    return -1;
}

ssize_t pread64(int fd, void *bytes, size_t len, off64_t at)
{
    ssize_t most = readable(fd, len, at);
    return most < 0 ? most : REAL(pread64)(fd, bytes, most, at);
}

ssize_t read(int fd, void *bytes, size_t len)
{
    off64_t at = lseek64(fd, 0, SEEK_CUR);
    int saved = errno;
    ssize_t most = at < 0 ? (ssize_t)len : readable(fd, len, at);
    if (most >= 0)
        errno = saved;
    return most < 0 ? most : REAL(read)(fd, bytes, most);
}

static int cannot_open(const char *path)
{
    const char *inode = getenv("BAD_OPEN");
    struct stat about;
    return inode && stat(path, &about) == 0 && about.st_ino == (ino_t)atoll(inode);
}

int open64(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    if (cannot_open(path)) {
        errno = EIO;
        return -1;
    }
    return REAL(open64)(path, flags, mode);
}

/* Programs fall back to reads. */
ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t len, unsigned flags)
{
    (void)from, (void)from_at, (void)to, (void)to_at, (void)len, (void)flags;
    errno = ENOSYS;
    return -1;
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t len)
{
    (void)to, (void)from, (void)at, (void)len;
    errno = EINVAL;
    return -1;
}
