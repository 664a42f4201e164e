package desired

import "slices"

// Images returns the images of all stored versions, each once; known is false where the LO
// has never had a desired state.
func (s *Store) Images() (images []string, known bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, spec := range s.specs {
		for _, c := range spec.Decoded.Components {
			for _, container := range c.Containers {
				images = append(images, container.Image)
			}
		}
	}
	slices.Sort(images)
	return slices.Compact(images), s.held
}
