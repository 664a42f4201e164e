// Package netns makes network namespaces that outlive the processes in them, and
// does the little with links that the network plugins leave undone.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Live reports whether path is a network namespace, and not the bare file
// that a reboot or a kill leaves.
func Live(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// Make makes a network namespace with its loopback up, held by a bind
// mount at path.
func Make(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o400)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	done := make(chan error)
	go fresh(path, done)
	return <-done
}

// fresh makes the namespace on a thread that ends with this goroutine: the thread changes its
// namespace permanently, so it is never unlocked. The main thread never ends and stands for the
// process in /proc/self, so it must not be changed: if this goroutine runs on it, it holds that
// thread for a moment, so that another goroutine runs on a different one.
func fresh(path string, done chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		elsewhere := make(chan error)
		go fresh(path, elsewhere)
		err := <-elsewhere
		runtime.UnlockOSThread()
		done <- err
		return
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		done <- fmt.Errorf("unshare: %w", err)
		return
	}
	if err := setLink("lo", true); err != nil {
		done <- fmt.Errorf("set lo up: %w", err)
		return
	}
	self := fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
	if err := unix.Mount(self, path, "none", unix.MS_BIND, ""); err != nil {
		done <- fmt.Errorf("bind mount: %w", err)
		return
	}
	done <- nil
}

// Do calls f in the namespace at path and returns its error. The sockets that f opens stay in the
// namespace, and the programs that f runs are in it; a goroutine that f starts is not.
func Do(path string, f func() error) error {
	done := make(chan error)
	go within(path, f, done)
	return <-done
}

// within calls f on a thread of its own, as fresh does.
func within(path string, f func() error, done chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		elsewhere := make(chan error)
		go within(path, f, elsewhere)
		err := <-elsewhere
		runtime.UnlockOSThread()
		done <- err
		return
	}
	ns, err := os.Open(path)
	if err != nil {
		done <- err
		return
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		done <- fmt.Errorf("enter the network namespace %s: %w", path, err)
		return
	}
	done <- f()
}

// ID returns what tells the namespace at path from others that exist, or 0 where there
// is none.
func ID(path string) uint64 {
	var st unix.Stat_t
	if !Live(path) || unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// Remove removes the namespace at path; a missing one is no error.
func Remove(path string) error {
	for Live(path) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// setLink sets a network interface of this thread's namespace up or down.
func setLink(name string, up bool) error {
	return linkIoctl(name, func(fd int, ifr *unix.Ifreq) error {
		if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
			return err
		}
		flags := ifr.Uint16()
		if up {
			flags |= unix.IFF_UP
		} else {
			flags &^= unix.IFF_UP
		}
		ifr.SetUint16(flags)
		return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
	})
}

// RemoveBridge removes a bridge; a missing one is no error.
func RemoveBridge(name string) error {
	if _, err := os.Stat(filepath.Join("/sys/class/net", name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := setLink(name, false); err != nil {
		return fmt.Errorf("set bridge %s down: %w", name, err)
	}
	err := linkIoctl(name, func(fd int, ifr *unix.Ifreq) error {
		// The ioctl reads the name alone, which an ifreq begins with.
		return unix.IoctlIfreq(fd, unix.SIOCBRDELBR, ifr)
	})
	if err != nil {
		return fmt.Errorf("remove bridge %s: %w", name, err)
	}
	return nil
}

func linkIoctl(name string, f func(fd int, ifr *unix.Ifreq) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	return f(fd, ifr)
}
