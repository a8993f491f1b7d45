"""Dense layers split over the model group, gradient reduction over the batch group, distribution of minibatches."""
