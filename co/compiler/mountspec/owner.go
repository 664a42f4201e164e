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

// OwnerOf returns whom the volume belongs to that stands for a relative path: the directory is
// one that the reader of a vendor's manual makes for that user, and on a node nobody can. It is
// the first, by name, of the services that write there as a user with a number. A name is known
// to the image alone, which then has the directory as well.
func OwnerOf(services types.Services, source string) Owner {
	for _, name := range slices.Sorted(maps.Keys(services)) {
		user, group, _ := strings.Cut(services[name].User, ":")
		uid, err := strconv.ParseUint(user, 10, 31)
		if err != nil || uid == 0 || !writes(services[name], source) {
			continue
		}
		gid, err := strconv.ParseUint(cmp.Or(group, "0"), 10, 31)
		if err != nil {
			gid = 0
		}
		return Owner{Service: name, UID: uint32(uid), GID: uint32(gid)}
	}
	return Owner{}
}

// Written reports whether any service writes to a relative path.
func Written(services types.Services, source string) bool {
	for _, s := range services {
		if writes(s, source) {
			return true
		}
	}
	return false
}

// writes reports whether a service binds a relative path to write there.
func writes(s types.ServiceConfig, source string) bool {
	return slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool {
		return v.Type == types.VolumeTypeBind && !v.ReadOnly && path.Clean(v.Source) == source
	})
}
