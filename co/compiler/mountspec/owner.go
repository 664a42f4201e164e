package mountspec

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

// An Owner is a user with a number as whom a service runs.
type Owner struct {
	Service  string // "": there is none
	UID, GID uint32
}

// OwnerOf returns the owner of the volume that stands for a relative path. Where the vendor's
// manual has its reader make that directory for a user, a node has no person to do it. The owner is
// the first service, by name, that writes there as a user with a number. A user with a name is
// known to the image: the engine gives it the new volume.
func OwnerOf(services types.Services, source string) Owner {
	return firstWriter(services, func(v types.ServiceVolumeConfig) bool { return bindOf(v, source) })
}

// OtherUser returns a user with a number as whom a service before this one, by name, writes to what
// it mounts, and the one of this service, where they differ. A volume has one owner.
func OtherUser(services types.Services, service string, v types.ServiceVolumeConfig) (other, own Owner) {
	same := func(o types.ServiceVolumeConfig) bool {
		return v.Type == types.VolumeTypeVolume && o.Type == v.Type && o.Source == v.Source || v.Type == types.VolumeTypeBind && bindOf(o, path.Clean(v.Source))
	}
	own, numbered := ownerOf(services, service)
	if other = firstWriter(services, same); v.ReadOnly || !numbered || other.Service == "" || other.UID == own.UID {
		return Owner{}, Owner{}
	}
	return other, own
}

// firstWriter returns the first service, by name, that writes to a mount as a user with a number.
func firstWriter(services types.Services, mount func(types.ServiceVolumeConfig) bool) Owner {
	for _, name := range slices.Sorted(maps.Keys(services)) {
		if o, ok := ownerOf(services, name); ok && writes(services, services[name], mount) {
			return o
		}
	}
	return Owner{}
}

// ownerOf returns the numeric user of a service; root, who can write anywhere, is none.
func ownerOf(services types.Services, name string) (Owner, bool) {
	user, group, _ := strings.Cut(services[name].User, ":")
	uid, err := strconv.ParseUint(user, 10, 31)
	if err != nil || uid == 0 {
		return Owner{}, false
	}
	gid, err := strconv.ParseUint(cmp.Or(group, "0"), 10, 31)
	if err != nil {
		gid = 0
	}
	return Owner{Service: name, UID: uint32(uid), GID: uint32(gid)}, true
}

// Written reports whether any service writes to a relative path.
func Written(services types.Services, source string) bool {
	for _, s := range services {
		if writes(services, s, func(v types.ServiceVolumeConfig) bool { return bindOf(v, source) }) {
			return true
		}
	}
	return false
}

// bindOf reports whether a mount is a bind of a relative path.
func bindOf(v types.ServiceVolumeConfig, source string) bool {
	return v.Type == types.VolumeTypeBind && path.Clean(v.Source) == source
}

// writes reports whether a service mounts something to write there, also from another service.
func writes(services types.Services, s types.ServiceConfig, mount func(types.ServiceVolumeConfig) bool) bool {
	return slices.ContainsFunc(append(slices.Clone(s.Volumes), Inherited(services, s)...), func(v types.ServiceVolumeConfig) bool {
		return !v.ReadOnly && mount(v)
	})
}

// Inherited returns the volumes of other services that a service has from them, but for those at whose
// targets it has its own, as in Docker.
func Inherited(services types.Services, s types.ServiceConfig) (taken []types.ServiceVolumeConfig) {
	for _, from := range s.VolumesFrom {
		name, mode, _ := strings.Cut(from, ":")
		for _, v := range services[name].Volumes {
			own := func(o types.ServiceVolumeConfig) bool { return path.Clean(o.Target) == path.Clean(v.Target) }
			if !slices.ContainsFunc(s.Volumes, own) && !slices.ContainsFunc(taken, own) {
				v.ReadOnly = v.ReadOnly || mode == "ro"
				taken = append(taken, v)
			}
		}
	}
	return taken
}
